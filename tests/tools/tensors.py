"""Tensors of model folders, for the tools beside this file. Values are moved, not computed with."""
import array
import json
import os
import struct

F32, F16, BF16, MXFP4 = 0, 1, 30, 39
ELEMENT = {F32: "I", F16: "H", BF16: "H"}
BLOCK, BLOCK_BYTES = 32, 17  # of MXFP4: such a tensor's shape counts bytes until it is written


class Tensor:
    def __init__(self, kind, shape, bits):
        self.kind, self.shape, self.bits = kind, list(shape), bits  # shape: slowest first

    def floats(self):
        if self.kind == F32:
            return list(struct.unpack(f"<{len(self.bits)}f", self.bits.tobytes()))
        if self.kind == F16:
            return list(struct.unpack(f"<{len(self.bits)}e", self.bits.tobytes()))
        wide = array.array("I", (b << 16 for b in self.bits))
        return list(struct.unpack(f"<{len(wide)}f", wide.tobytes()))

    def as_f32(self, plus=0.0):
        return from_floats([x + plus for x in self.floats()], self.shape)

    def rows(self, lo, hi, step=1):
        """Rows lo, lo + step, ... of the first axis."""
        width = len(self.bits) // self.shape[0]
        out = array.array(self.bits.typecode)
        for row in range(lo, hi, step):
            out.extend(self.bits[row * width:(row + 1) * width])
        return Tensor(self.kind, [len(range(lo, hi, step))] + self.shape[1:], out)

    def transposed(self):
        """The last two axes exchanged."""
        a, b = self.shape[-2:]
        out = array.array(self.bits.typecode)
        for at in range(0, len(self.bits), a * b):
            part = self.bits[at:at + a * b]
            for column in range(b):
                out.extend(part[column::b])
        return Tensor(self.kind, self.shape[:-2] + [b, a], out)

    def last_axis(self, start, step):
        return Tensor(self.kind, self.shape[:-1] + [self.shape[-1] // step], self.bits[start::step])

    def reshaped(self, *shape):
        return Tensor(self.kind, shape, self.bits)


def from_floats(values, shape):
    bits = array.array("I", struct.pack(f"<{len(values)}f", *values))
    return Tensor(F32, shape, bits)


def stacked(tensors):
    out = array.array(tensors[0].bits.typecode)
    for t in tensors:
        out.extend(t.bits)
    return Tensor(tensors[0].kind, [len(tensors)] + tensors[0].shape, out)


def read_config(folder):
    with open(f"{folder}/config.json", encoding="utf-8") as f:
        return json.load(f)


def read_folder(folder):
    config = read_config(folder)
    with open(f"{folder}/model.safetensors", "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    kinds = {"F32": F32, "F16": F16, "BF16": BF16}
    tensors = {}
    for name, t in head.items():
        if name == "__metadata__" or name.endswith("_scales"):
            continue
        lo, hi = t["data_offsets"]
        if name.endswith("_blocks"):
            name = name.removesuffix("_blocks")
            first, last = head[f"{name}_scales"]["data_offsets"]
            tensors[name] = mxfp4(t["shape"], data[lo:hi], data[first:last])
            continue
        kind = kinds[t["dtype"]]
        tensors[name] = Tensor(kind, t["shape"], array.array(ELEMENT[kind], data[lo:hi]))
    return config, tensors


def mxfp4(shape, codes, exponents):
    """Of a folder: codes in their order, two a byte; of GGUF: an exponent, then code k beside code
    k + 16."""
    out = array.array("B")
    half = BLOCK // 2
    for b, exponent in enumerate(exponents):
        row = [c for byte in codes[b * half:(b + 1) * half] for c in (byte & 15, byte >> 4)]
        out.append(exponent)
        out.extend(row[k] | row[half + k] << 4 for k in range(half))
    return Tensor(MXFP4, [*shape[:2], shape[2] * BLOCK_BYTES], out)


def raw(t):
    """(dtype, shape, bytes) as write_folder takes them."""
    return {F32: "F32", F16: "F16", BF16: "BF16"}[t.kind], t.shape, t.bits.tobytes()


def write_folder(path, config, tensors):
    """tensors: {name: (dtype, shape, bytes)}; the widest elements come first, so that all lie on a
    multiple of their size."""
    os.makedirs(path, exist_ok=True)
    width = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}
    head, data = {}, b""
    for name, (kind, shape, part) in sorted(tensors.items(), key=lambda t: -width[t[1][0]]):
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    put(f"{path}/config.json", json.dumps(config).encode())
    put(f"{path}/model.safetensors", struct.pack("<Q", len(text)) + text + data)


def put(path, data):
    """Whole or not at all: a test may be reading it."""
    with open(f"{path}.new", "wb") as f:
        f.write(data)
    os.replace(f"{path}.new", path)
