// A host for examples/wasm.rs: node tools/wasm.mjs MODULE.wasm '{"task": "<OD>", "text": "…", "image_size": [640, 480]}'
import { readFile } from "node:fs/promises";

const [path, request] = process.argv.slice(2);
const { instance } = await WebAssembly.instantiate(await readFile(path), {});
const { memory, reserve, parse, answer_len } = instance.exports;
const bytes = new TextEncoder().encode(request);
// Making room may grow the memory, which detaches the old buffer.
const room = reserve(bytes.length);
new Uint8Array(memory.buffer).set(bytes, room);
const at = parse();
console.log(new TextDecoder().decode(new Uint8Array(memory.buffer, at, answer_len())));
