# fuzz targets: see fuzz/
