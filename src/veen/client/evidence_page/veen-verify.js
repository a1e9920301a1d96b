// Verifies VEEN evidence in a browser: strict CBOR, SHA-256 and Ed25519 by WebCrypto, the tree, and every check of
// docs/evidence.md, in the order of that page. No network, no storage, no DOM, no other code.
//
// Integers are BigInt: sequence numbers have 64 bits. Sizes and counts are judged before anything is allocated. Every
// refusal is a Fault with one code of docs/evidence.md; whatever else is thrown is a defect of this module.

const MAGIC = [0x84, 0x6d, ...new TextEncoder().encode("veen-evidence")];
const LIMITS = {
  fileBytes: 64 * 1024 * 1024, entries: 65536, logs: 1024, checkpoints: 16, profiles: 16, rotations: 1023,
  nameBytes: 1024, outside: 256, outsideBytes: 65536, items: 8 * 65536, depth: 32, mapEntries: 1024,
  identityBytes: 1024 * 1024, hubKeys: 1024, witnesses: 16, peaks: 64, spanNodes: 128,
  hdrBytes: 16384, bodyBytes: 1048320, itemBytes: 16 * 1024 * 1024,
};
const OUTSIDE_KINDS = ["tlog-proof", "cose-receipt", "rfc3161"];

class Fault extends Error {
  constructor(code, what) {
    super(what);
    this.code = code;
  }
}

const require_ = (good, code, what) => {
  if (!good) throw new Fault(code, what);
};

// --- bytes ---------------------------------------------------------------------------------------------------------

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const text = (bytes) => new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
const utf8 = (string) => new TextEncoder().encode(string);

function unhex(digits) {
  if (!/^(?:[0-9a-f]{2})*$/.test(digits)) throw new Fault("FORM", "not lower-case hex digits");
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

function concat(...parts) {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function compare(a, b) {
  for (let i = 0; i < Math.min(a.length, b.length); i++) {
    if (a[i] !== b[i]) return a[i] - b[i];
  }
  return a.length - b.length;
}

const same = (a, b) => a instanceof Uint8Array && b instanceof Uint8Array && compare(a, b) === 0;

function u64be(value) {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, value);
  return bytes;
}

// --- CBOR: one encoding for each value (spec §3.1) --------------------------------------------------------------------

class CborMap {
  constructor(pairs) {
    this.pairs = pairs; // [key, value], in the order of the bytes
  }
}

function decodeCbor(data, maxItems = LIMITS.items) {
  let at = 0;
  let items = 0;
  const bad = (what) => new Fault("FORM", `CBOR: ${what}`);
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);

  function head() {
    if (at >= data.length) throw bad("ends in the middle of an item");
    const major = data[at] >> 5;
    const info = data[at] & 31;
    at += 1;
    if (info < 24) return [major, info, BigInt(info)];
    if (info > 27) throw bad("indefinite or reserved length");
    const width = 1 << (info - 24);
    if (at + width > data.length) throw bad("ends in the middle of an item");
    let value;
    if (width === 8) value = view.getBigUint64(at);
    else value = BigInt(width === 4 ? view.getUint32(at) : width === 2 ? view.getUint16(at) : data[at]);
    at += width;
    if (major < 7 && value < [24n, 0x100n, 0x10000n, 0x100000000n][info - 24]) throw bad("not the shortest encoding");
    return [major, info, value];
  }

  function bytes(length) {
    if (length > BigInt(data.length - at)) throw bad("ends in the middle of an item");
    const start = at;
    at += Number(length);
    return data.slice(start, at);
  }

  function item(depth) {
    items += 1;
    if (items > maxItems) throw bad("more items than there may be");
    const [major, info, value] = head();
    if (major === 0) return value;
    if (major === 1) return -1n - value;
    if (major === 2) return bytes(value);
    if (major === 3) {
      try {
        return text(bytes(value));
      } catch (error) {
        if (error instanceof Fault) throw error;
        throw bad("text is not valid UTF-8");
      }
    }
    if (major === 4 || major === 5) {
      if (value > BigInt(data.length - at)) throw bad("ends in the middle of an item");
      if (BigInt(items) + value > BigInt(maxItems)) throw bad("more items than there may be"); // before it is allocated
      if (depth >= LIMITS.depth && value) throw bad("nested too deep");
      if (major === 4) return Array.from({ length: Number(value) }, () => item(depth + 1));
      if (value > BigInt(LIMITS.mapEntries)) throw bad("a map with too many entries");
      const seen = new Set();
      const pairs = [];
      for (let i = 0; i < Number(value); i++) {
        const start = at;
        const key = item(depth + 1);
        if (typeof key !== "bigint" && typeof key !== "string" && !(key instanceof Uint8Array)) throw bad("a bad key");
        const name = hex(data.subarray(start, at));
        if (seen.has(name)) throw bad("a key occurs twice");
        seen.add(name);
        pairs.push([key, item(depth + 1)]);
      }
      return new CborMap(pairs);
    }
    if (major === 7 && info < 24 && value >= 20n && value <= 22n) return [false, true, null][Number(value) - 20];
    throw bad("tags, fractions and other simple values are not allowed");
  }

  const value = item(0);
  if (at !== data.length) throw bad("bytes follow the item");
  return value;
}

function cborHead(major, value) {
  const length = BigInt(value);
  const first = major << 5;
  if (length < 24n) return Uint8Array.of(first | Number(length));
  const width = length < 0x100n ? 1 : length < 0x10000n ? 2 : length < 0x100000000n ? 4 : 8;
  return concat(Uint8Array.of(first | (24 + Math.log2(width))), u64be(length).slice(8 - width));
}

function encodeCbor(value) {
  if (value === null) return Uint8Array.of(0xf6);
  if (typeof value === "bigint") return value < 0n ? cborHead(1, -1n - value) : cborHead(0, value);
  if (typeof value === "boolean") return Uint8Array.of(value ? 0xf5 : 0xf4);
  if (typeof value === "string") return concat(cborHead(3, utf8(value).length), utf8(value));
  if (value instanceof Uint8Array) return concat(cborHead(2, value.length), value);
  if (value instanceof CborMap) return concat(cborHead(5, value.pairs.length), ...value.pairs.flat().map(encodeCbor));
  return concat(cborHead(4, value.length), ...value.map(encodeCbor));
}

// --- reading objects: types first, then sizes, then the version (spec §8.2) -------------------------------------------

class Reader {
  // The fields of an array by position, or of a map with the keys 1, 2, 3 … in order.
  constructor(what, value, form, faults = { size: null, version: null }) {
    this.what = what;
    this.form = form;
    this.faults = faults;
    this.position = 0;
    if (form === "array") {
      this.type(Array.isArray(value), "expected an array");
      this.left = value.map((item, index) => [BigInt(index + 1), item]);
    } else {
      this.type(value instanceof CborMap, "expected a map");
      this.left = value.pairs;
    }
    this.left = [...this.left];
  }

  type(good, what) {
    require_(good, "FORM", `${this.what}: ${what}`);
  }

  size(good, what) {
    if (!good) this.faults.size ??= `${this.what}: ${what}`;
  }

  more() {
    return this.left.length > 0;
  }

  has() {
    return this.more() && this.left[0][0] === BigInt(this.position + 1);
  }

  peek() {
    return this.more() ? this.left[0][1] : undefined;
  }

  skip() {
    this.position += 1;
    return null;
  }

  next(name) {
    this.type(this.has(), `${name} is missing or misplaced`);
    this.position += 1;
    return this.left.shift()[1];
  }

  uint(name) {
    const value = this.next(name);
    this.type(typeof value === "bigint" && value >= 0n, `${name} is not an unsigned integer`);
    return value;
  }

  version() {
    const value = this.uint("ver");
    if (value !== 1n) this.faults.version ??= `${this.what}: unknown version ${value}`;
  }

  blob(name) {
    const value = this.next(name);
    this.type(value instanceof Uint8Array, `${name} is not a byte string`);
    return value;
  }

  bytes(name, length) {
    const value = this.blob(name);
    this.size(value.length === length, `${name} has ${value.length} bytes, expected ${length}`);
    return value;
  }

  string(name) {
    const value = this.next(name);
    this.type(typeof value === "string", `${name} is not text`);
    return value;
  }

  list(name, least, most) {
    const value = this.next(name);
    this.type(Array.isArray(value), `${name} is not an array`);
    this.size(value.length >= least && value.length <= most, `${name} has ${value.length} elements`);
    return value;
  }

  blobs(name, least, most) {
    const values = this.list(name, least, most);
    for (const value of values) this.type(value instanceof Uint8Array, `${name} holds something else than bytes`);
    return values;
  }

  hashes(name, most, length = 32, least = 0) {
    const values = this.blobs(name, least, most);
    for (const value of values) this.size(value.length === length, `${name} holds a value of ${value.length} bytes`);
    return values;
  }

  objects(name, least, most, form, read) {
    const what = `${this.what}.${name}`;
    return this.list(name, least, most).map((value) => inner(what, value, form, this.faults, read));
  }

  done() {
    this.type(!this.more(), "an unknown, repeated or misplaced field");
  }
}

function inner(what, value, form, faults, read) {
  const reader = new Reader(what, value, form, faults);
  const object = read(reader);
  reader.done();
  return object;
}

function readObject(what, raw, form, read) {
  // The object in `raw`; a wrong size or version of an object inside a file is a fault of the file's form.
  require_(raw.length <= LIMITS.itemBytes, "FORM", `${what}: too large`);
  const faults = { size: null, version: null };
  const object = inner(what, decodeCbor(raw), form, faults, read);
  const fault = faults.size ?? faults.version;
  require_(fault === null, "FORM", fault);
  return object;
}

const readMsg = (raw) =>
  readObject("MSG", raw, "array", (r) => {
    r.version();
    const msg = {
      profileId: r.bytes("profile_id", 32), label: r.bytes("label", 32), clientId: r.bytes("client_id", 32),
      clientSeq: r.uint("client_seq"), prevAck: r.uint("prev_ack"),
    };
    msg.authRef = r.peek() === null ? r.next("auth_ref") : r.bytes("auth_ref", 32);
    msg.ctHash = r.bytes("ct_hash", 32);
    msg.ciphertext = r.blob("ciphertext");
    msg.sig = r.bytes("sig", 64);
    return msg;
  });

const readReceipt = (raw) =>
  readObject("RECEIPT", raw, "array", (r) => {
    r.version();
    return {
      label: r.bytes("label", 32), streamSeq: r.uint("stream_seq"), leafHash: r.bytes("leaf_hash", 32),
      mmrRoot: r.bytes("mmr_root", 32), hubTs: r.uint("hub_ts"), hubSig: r.bytes("hub_sig", 64),
    };
  });

const readCheckpoint = (raw) =>
  readObject("CHECKPOINT", raw, "array", (r) => {
    r.version();
    return {
      labelPrev: r.bytes("label_prev", 32), labelCurr: r.bytes("label_curr", 32), uptoSeq: r.uint("upto_seq"),
      mmrRoot: r.bytes("mmr_root", 32), epoch: r.uint("epoch"), hubSig: r.bytes("hub_sig", 64),
      witnessSigs: r.more() ? r.hashes("witness_sigs", LIMITS.witnesses, 64, 1) : [],
    };
  });

const readRangeProof = (raw) =>
  readObject("range_proof", raw, "map", (r) => {
    r.version();
    return {
      firstSeq: r.uint("first_seq"), lastSeq: r.uint("last_seq"), treeSize: r.uint("tree_size"),
      before: r.hashes("before", LIMITS.peaks), after: r.hashes("after", LIMITS.spanNodes),
    };
  });

const readConsistencyProof = (raw) =>
  readObject("consistency_proof", raw, "map", (r) => {
    r.version();
    return {
      fromSize: r.uint("from_size"), toSize: r.uint("to_size"),
      peaks: r.hashes("peaks", LIMITS.peaks), added: r.hashes("added", LIMITS.spanNodes),
    };
  });

const readInclusionProof = (raw) =>
  readObject("mmr_proof", raw, "map", (r) => {
    r.version();
    return {
      leafHash: r.bytes("leaf_hash", 32),
      path: r.objects("path", 0, 64, "map", (step) => ({ dir: step.uint("dir"), sib: step.bytes("sib", 32) })),
      peaksAfter: r.hashes("peaks_after", LIMITS.peaks),
    };
  });

const readRotation = (raw) =>
  readObject("control record", raw, "array", (r) => {
    r.version();
    const seq = r.uint("seq");
    // Records of other kinds are none that an evidence file may hold.
    const kind = r.string("kind");
    if (!CONTROL_KINDS.includes(kind)) r.type(false, "unknown kind");
    const record = { seq, kind, hubTs: r.uint("hub_ts"), prevHash: r.bytes("prev_hash", 32), body: null };
    const value = r.next("body");
    if (kind === "key.rotate") {
      record.body = inner("key.rotate", value, "map", r.faults, (b) => ({
        hubPk: b.bytes("hub_pk", 32), validFrom: b.uint("valid_from"),
        retiredPk: b.has() ? b.bytes("retired_pk", 32) : b.skip(),
        retiredUntil: b.has() ? b.uint("retired_until") : b.skip(),
      }));
    }
    record.bodyValue = value;
    record.hubSig = r.bytes("hub_sig", 64);
    return record;
  });
const CONTROL_KINDS = ["key.rotate"];

const SUITE = ["xchacha20poly1305", "hkdf-sha256", "ed25519", "x25519", "X25519-HKDF-SHA256-CHACHA20POLY1305"];
const readProfile = (raw) =>
  readObject("profile", raw, "map", (r) => {
    for (const word of SUITE) r.type(r.string("suite") === word, `v0.0.1 allows only ${word}`);
    const profile = { epochSec: r.uint("epoch_sec"), padBlock: r.uint("pad_block") };
    r.type(r.string("mmr_hash") === "sha256", "v0.0.1 allows only sha256");
    return profile;
  });

const readPayloadHdr = (raw) =>
  readObject("payload_hdr", raw, "map", (r) => {
    const hdr = { schema: r.bytes("schema", 32) };
    for (const name of ["parentId", "attRoot", "capRef"]) hdr[name] = r.has() ? r.bytes(name, 32) : r.skip();
    hdr.expiresAt = r.has() ? r.uint("expires_at") : r.skip();
    return hdr;
  });

// --- hashes and signatures ------------------------------------------------------------------------------------------

const sha256 = async (...parts) => new Uint8Array(await crypto.subtle.digest("SHA-256", concat(...parts)));
const tagged = (tag, ...parts) => sha256(utf8(tag), Uint8Array.of(0), ...parts);

const leafHash = (msg) =>
  tagged("veen/leaf", msg.label, msg.profileId, msg.ctHash, msg.clientId, u64be(msg.clientSeq));

const msgDigest = (msg) =>
  tagged("veen/sig", encodeCbor([
    1n, msg.profileId, msg.label, msg.clientId, msg.clientSeq, msg.prevAck, msg.authRef, msg.ctHash, msg.ciphertext,
  ]));

const receiptDigest = (receipt) =>
  tagged("veen/sig", encodeCbor([
    1n, receipt.label, receipt.streamSeq, receipt.leafHash, receipt.mmrRoot, receipt.hubTs,
  ]));

const checkpointDigest = (checkpoint) =>
  tagged("veen/sig", encodeCbor([
    1n, checkpoint.labelPrev, checkpoint.labelCurr, checkpoint.uptoSeq, checkpoint.mmrRoot, checkpoint.epoch,
  ]));

const controlDigest = (record) =>
  tagged("veen/control", encodeCbor([
    1n, record.seq, record.kind, record.hubTs, record.prevHash, record.bodyValue,
  ]));

// The points of small order, with and without canonical encoding, the sign bit cleared. VEEN refuses them as keys and
// as R; WebCrypto leaves that to the browser. S must be below the order of the group, keys must be canonical.
const SMALL_ORDER = [
  "0000000000000000000000000000000000000000000000000000000000000000",
  "0100000000000000000000000000000000000000000000000000000000000000",
  "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
  "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
  "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
  "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
  "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];
const ORDER = 2n ** 252n + 27742317777372353535851937790883648493n;
const PRIME = 2n ** 255n - 19n;
const littleEndian = (bytes) => BigInt(`0x${hex(Uint8Array.from(bytes).reverse())}`);

function unsigned(point) {
  const copy = Uint8Array.from(point);
  copy[31] &= 0x7f;
  return copy;
}

const keys = new Map();
async function imported(publicKey) {
  const name = hex(publicKey);
  if (!keys.has(name)) {
    if (keys.size > 4096) keys.clear();
    keys.set(name, await crypto.subtle.importKey("raw", publicKey, "Ed25519", false, ["verify"]).catch(() => null));
  }
  return keys.get(name);
}

async function ed25519Verify(publicKey, message, signature) {
  if (publicKey.length !== 32 || signature.length !== 64) return false;
  const key = unsigned(publicKey);
  if (littleEndian(key) >= PRIME || SMALL_ORDER.includes(hex(key))) return false;
  if (SMALL_ORDER.includes(hex(unsigned(signature.subarray(0, 32))))) return false;
  if (littleEndian(signature.subarray(32)) >= ORDER) return false;
  const webKey = await imported(publicKey);
  if (webKey === null) return false;
  return crypto.subtle.verify("Ed25519", webKey, signature, message);
}

async function missingSupport() {
  // What this browser lacks; null if it can verify. RFC 8032, test 1, must pass, and must fail with one bit changed.
  if (!globalThis.crypto?.subtle) return "WebCrypto is not available: open the page from a file or over HTTPS";
  const key = unhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
  const signature = unhex(
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
  );
  try {
    if (!(await ed25519Verify(key, new Uint8Array(), signature))) return "this browser has no Ed25519 in WebCrypto";
    signature[0] ^= 1;
    if (await ed25519Verify(key, new Uint8Array(), signature)) return "Ed25519 of this browser accepts a bad signature";
  } catch {
    return "this browser has no Ed25519 in WebCrypto";
  }
  return null;
}

// --- the tree (spec §5) ---------------------------------------------------------------------------------------------

const node = (left, right) => tagged("veen/mmr-node", left, right);
const bits = (size) => [...size.toString(2)].filter((digit) => digit === "1").length;

function rootOf(peaks) {
  if (peaks.length === 1) return peaks[0];
  return tagged("veen/mmr-root", ...peaks);
}

function spanHeights(start, end) {
  // The heights of the largest aligned subtrees over the leaves start … end - 1, from left to right.
  const heights = [];
  while (start < end) {
    let height = 0n;
    while ((start >> height) % 2n === 0n && start + (2n << height) <= end) height += 1n;
    heights.push(height);
    start += 1n << height;
  }
  return heights;
}

class Tree {
  // Joins subtrees from left to right, beginning with the peaks of a whole tree.
  constructor(size, peaks) {
    require_(peaks.length === bits(size), "PROOF", `${size} leaves have ${bits(size)} peaks, not ${peaks.length}`);
    this.size = size;
    const heights = [];
    for (let height = 0n; size >> height; height += 1n) if ((size >> height) & 1n) heights.push(height);
    this.stack = peaks.map((hash, index) => ({ height: heights[index], hash })).reverse();
  }

  async push(height, hash) {
    while (this.stack.length && this.stack.at(-1).height === height) {
      hash = await node(this.stack.pop().hash, hash);
      height += 1n;
    }
    this.stack.push({ height, hash });
  }

  async append(leaf) {
    await this.push(0n, leaf);
    this.size += 1n;
  }

  async extend(size, nodes) {
    const heights = spanHeights(this.size, size);
    require_(heights.length === nodes.length, "PROOF", `the proof has ${nodes.length} subtrees, not ${heights.length}`);
    for (let i = 0; i < nodes.length; i++) await this.push(heights[i], nodes[i]);
    this.size = size;
  }

  root() {
    require_(this.stack.length > 0, "PROOF", "an empty tree has no root");
    return rootOf(this.stack.map(({ hash }) => hash).reverse());
  }
}

async function checkConsistency(proof, fromSize, fromRoot, toSize, toRoot) {
  require_(proof.fromSize === fromSize && proof.toSize === toSize, "PROOF", "the proof is for other sizes");
  require_(fromSize >= 1n && fromSize <= toSize, "PROOF", "a log cannot extend a longer one");
  const tree = new Tree(fromSize, proof.peaks);
  require_(same(await tree.root(), fromRoot), "PROOF", "the proof does not lead to the older root");
  await tree.extend(toSize, proof.added);
  require_(same(await tree.root(), toRoot), "PROOF", "the proof does not lead to the newer root");
}

async function checkRange(proof, leaves, treeSize, root) {
  require_(proof.treeSize === treeSize, "PROOF", "the proof is for a tree of another size");
  const count = BigInt(leaves.length);
  require_(count > 0n && proof.lastSeq === proof.firstSeq + count - 1n, "PROOF", "the proof is for other leaves");
  require_(proof.firstSeq >= 1n && proof.lastSeq <= treeSize, "PROOF", "the range is not inside the tree");
  const tree = new Tree(proof.firstSeq - 1n, proof.before);
  for (const leaf of leaves) await tree.append(leaf);
  await tree.extend(treeSize, proof.after);
  require_(same(await tree.root(), root), "PROOF", "the range does not lead to the root");
}

async function checkInclusion(proof, leaf, seq, size, root) {
  require_(seq >= 1n && seq <= size, "PROOF", `there is no entry ${seq} in a log of ${size}`);
  require_(same(proof.leafHash, leaf), "PROOF", "the proof is for another leaf");
  const position = seq - 1n;
  const heights = [];
  for (let height = 0n; size >> height; height += 1n) if ((size >> height) & 1n) heights.push(height);
  const own = heights.find((height) => position >= (size >> (height + 1n)) << (height + 1n));
  require_(BigInt(proof.path.length) === own, "PROOF", `the path has ${proof.path.length} steps, not ${own}`);
  let hash = leaf;
  for (const [level, step] of proof.path.entries()) {
    require_(step.dir === ((position >> BigInt(level)) & 1n), "PROOF", "a step has the wrong direction");
    hash = step.dir ? await node(step.sib, hash) : await node(hash, step.sib);
  }
  require_(proof.peaksAfter.length === heights.length - 1, "PROOF", "the peaks do not fit the size");
  const peaks = [...proof.peaksAfter];
  peaks.splice(heights.indexOf(own), 0, hash);
  require_(new Set(peaks.map(hex)).size === peaks.length, "PROOF", "a peak occurs twice");
  require_(same(await rootOf(peaks), root), "PROOF", "the proof does not lead to the root");
}

// --- opening a message (spec §4.2; RFC 9180, RFC 8439, XChaCha20-Poly1305) --------------------------------------------
// Only public values and secrets that the file hands out pass through here, so nothing depends on constant time.

function chachaRounds(state) {
  const x = Uint32Array.from(state);
  const quarter = (a, b, c, d) => {
    x[a] += x[b]; x[d] ^= x[a]; x[d] = (x[d] << 16) | (x[d] >>> 16);
    x[c] += x[d]; x[b] ^= x[c]; x[b] = (x[b] << 12) | (x[b] >>> 20);
    x[a] += x[b]; x[d] ^= x[a]; x[d] = (x[d] << 8) | (x[d] >>> 24);
    x[c] += x[d]; x[b] ^= x[c]; x[b] = (x[b] << 7) | (x[b] >>> 25);
  };
  for (let round = 0; round < 10; round++) {
    quarter(0, 4, 8, 12); quarter(1, 5, 9, 13); quarter(2, 6, 10, 14); quarter(3, 7, 11, 15);
    quarter(0, 5, 10, 15); quarter(1, 6, 11, 12); quarter(2, 7, 8, 13); quarter(3, 4, 9, 14);
  }
  return x;
}

const SIGMA = [0x61707865, 0x3320646e, 0x79622d32, 0x6b206574];

function words(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Array.from({ length: bytes.length / 4 }, (_, index) => view.getUint32(4 * index, true));
}

function wordBytes(values) {
  const bytes = new Uint8Array(4 * values.length);
  const view = new DataView(bytes.buffer);
  values.forEach((value, index) => view.setUint32(4 * index, value, true));
  return bytes;
}

function chachaBlock(key, counter, nonce) {
  const state = [...SIGMA, ...words(key), counter, ...words(nonce)];
  const mixed = chachaRounds(state);
  return wordBytes(Array.from(mixed, (value, index) => (value + state[index]) >>> 0));
}

function hchacha(key, nonce16) {
  const mixed = chachaRounds([...SIGMA, ...words(key), ...words(nonce16)]);
  return wordBytes([...mixed.slice(0, 4), ...mixed.slice(12)]);
}

function poly1305(key, message) {
  const r = littleEndian(key.subarray(0, 16)) & 0x0ffffffc0ffffffc0ffffffc0fffffffn;
  const prime = (1n << 130n) - 5n;
  let sum = 0n;
  for (let at = 0; at < message.length; at += 16) {
    sum = ((sum + littleEndian(concat(message.subarray(at, at + 16), Uint8Array.of(1)))) * r) % prime;
  }
  const tag = (sum + littleEndian(key.subarray(16, 32))) & ((1n << 128n) - 1n);
  return Uint8Array.from(unhex(tag.toString(16).padStart(32, "0"))).reverse();
}

function aeadOpen(key, nonce, aad, sealed) {
  // ChaCha20-Poly1305 with a nonce of 12 bytes, XChaCha20-Poly1305 with one of 24; null if it does not open.
  if (sealed.length < 16) return null;
  if (nonce.length === 24) {
    key = hchacha(key, nonce.slice(0, 16));
    nonce = concat(new Uint8Array(4), nonce.slice(16));
  }
  const ciphertext = sealed.subarray(0, sealed.length - 16);
  const pad = (part) => new Uint8Array(-part.length & 15);
  const lengths = wordBytes([aad.length, 0, ciphertext.length, 0]);
  const oneTime = chachaBlock(key, 0, nonce).slice(0, 32);
  const tag = poly1305(oneTime, concat(aad, pad(aad), ciphertext, pad(ciphertext), lengths));
  if (!same(tag, sealed.slice(sealed.length - 16))) return null;
  const plain = new Uint8Array(ciphertext.length);
  for (let at = 0; at < plain.length; at += 64) {
    const block = chachaBlock(key, at / 64 + 1, nonce);
    for (let i = 0; i < Math.min(64, plain.length - at); i++) plain[at + i] = ciphertext[at + i] ^ block[i];
  }
  return plain;
}

async function hmac(key, ...parts) {
  const padded = new Uint8Array(64);
  padded.set(key);
  const inside = await sha256(padded.map((byte) => byte ^ 0x36), ...parts);
  return sha256(padded.map((byte) => byte ^ 0x5c), inside);
}

const HPKE = concat(utf8("HPKE-v1HPKE"), Uint8Array.of(0, 0x20, 0, 1, 0, 3));

async function hpkeContext(sharedSecret, info = new Uint8Array()) {
  // The key schedule of base mode: the key and nonce of the first message, and the exporter.
  const empty = new Uint8Array();
  const context = concat(
    Uint8Array.of(0), await hmac(empty, HPKE, utf8("psk_id_hash")), await hmac(empty, HPKE, utf8("info_hash"), info),
  );
  const secret = await hmac(sharedSecret, HPKE, utf8("secret"));
  const expand = async (prk, label, about, length) =>
    (await hmac(prk, Uint8Array.of(0, length), HPKE, utf8(label), about, Uint8Array.of(1))).slice(0, length);
  const exporter = await expand(secret, "exp", context, 32);
  return {
    key: await expand(secret, "key", context, 32),
    nonce: await expand(secret, "base_nonce", context, 12),
    exported: (about) => expand(exporter, "sec", about, 32),
  };
}

function splitCiphertext(ciphertext) {
  // The parts along their own length fields; null if they do not fit or the padding is not zero.
  if (ciphertext.length < 40) return null;
  const view = new DataView(ciphertext.buffer, ciphertext.byteOffset);
  const [hdr, body] = [view.getUint32(32), view.getUint32(36)];
  if (hdr > LIMITS.hdrBytes || body > LIMITS.bodyBytes || 40 + hdr + body > ciphertext.length) return null;
  if (ciphertext.subarray(40 + hdr + body).some((byte) => byte !== 0)) return null;
  return { hdr: ciphertext.slice(40, 40 + hdr), body: ciphertext.slice(40 + hdr, 40 + hdr + body) };
}

async function openMessage(opening, msg) {
  const parts = splitCiphertext(msg.ciphertext);
  const [seq, ack] = [u64be(msg.clientSeq), u64be(msg.prevAck)];
  const aad = await tagged(
    "veen/aad", msg.profileId, msg.label, msg.clientId, seq, ack, msg.authRef ?? new Uint8Array(32),
  );
  const context = await hpkeContext(opening);
  const hdr = aeadOpen(context.key, context.nonce, aad, parts.hdr);
  if (hdr === null) return null;
  const nonce = (await tagged("veen/nonce", msg.label, ack, msg.clientId, seq)).slice(0, 24);
  const body = aeadOpen(await context.exported(utf8("veen/body-k")), nonce, aad, parts.body);
  if (body === null) return null;
  try {
    return { hdr: readPayloadHdr(hdr), body };
  } catch {
    return null;
  }
}

// --- the file (docs/evidence.md) ------------------------------------------------------------------------------------

async function readFrame(data) {
  require_(data.length <= LIMITS.fileBytes, "SIZE", `${data.length} bytes; a file has at most ${LIMITS.fileBytes}`);
  const common = Math.min(data.length, MAGIC.length);
  const begins = same(data.slice(0, common), Uint8Array.from(MAGIC.slice(0, common)));
  require_(begins && data.length, "KIND", "the first bytes are not those of an evidence file");
  require_(data.length >= MAGIC.length + 36, "TRUNCATED", `the file ends after ${data.length} bytes`);
  const integer = (at, major) => {
    const info = data[at] - major;
    require_(info >= 0 && info < 28, "FORM", "the frame of the file is not in its canonical form");
    if (info < 24) return [info, at + 1];
    const width = 1 << (info - 24);
    const value = Number(littleEndian(data.slice(at + 1, at + 1 + width).reverse()));
    require_(value >= [24, 0x100, 0x10000, 0x100000000][info - 24], "FORM", "the frame is not in its canonical form");
    return [value, at + 1 + width];
  };
  const [version, next] = integer(MAGIC.length, 0);
  require_(version === 1, "VERSION", `the file has version ${version}, this page reads 1`);
  const [length, start] = integer(next, 0x40);
  const end = start + length;
  require_(data.length >= end + 34, "TRUNCATED", `the file ends after ${data.length} of ${end + 34} bytes`);
  const framed = data.length === end + 34 && data[end] === 0x58 && data[end + 1] === 0x20;
  require_(framed, "FORM", "bytes follow the file, or its parts have other lengths than they say");
  const body = data.slice(start, end);
  require_(same(await tagged("veen/evidence", body), data.slice(end + 2)), "DAMAGED", "the digest does not match");
  return body;
}

function readBody(body) {
  const faults = { size: null, version: null };
  const file = inner("evidence", decodeCbor(body), "map", faults, (r) => {
    const entry = (e) => {
      const read = { msg: e.blob("msg"), receipt: e.blob("receipt"), opening: null, stated: null };
      if (Array.isArray(e.peek())) {
        read.stated = inner("plaintext", e.next("content"), "array", faults, (p) => ({
          hdr: p.blob("payload_hdr"), body: p.blob("body"),
        }));
      } else if (e.more()) read.opening = e.bytes("content", 32);
      return read;
    };
    const run = (e) => ({ proof: e.blob("proof"), entries: e.objects("entries", 1, LIMITS.entries, "array", entry) });
    const log = (e) => ({
      label: e.bytes("label", 32), epoch: e.uint("epoch"),
      checkpoints: e.blobs("checkpoints", 1, LIMITS.checkpoints),
      consistency: e.blobs("consistency", 0, LIMITS.checkpoints - 1),
      runs: e.objects("runs", 1, LIMITS.entries, "map", run),
    });
    const outside = (e) => {
      const kind = e.string("kind");
      e.type(OUTSIDE_KINDS.includes(kind), "unknown kind of proof");
      return { kind, checkpointHash: e.bytes("checkpoint_hash", 32), data: e.blob("data") };
    };
    return {
      identity: r.blob("identity"), identitySig: r.bytes("identity_sig", 64),
      rotations: r.blobs("rotations", 0, LIMITS.rotations),
      streamId: r.has() ? r.bytes("stream_id", 32) : r.skip(),
      streamName: r.has() ? r.string("stream_name") : r.skip(),
      profiles: r.blobs("profiles", 1, LIMITS.profiles),
      logs: r.objects("logs", 1, LIMITS.logs, "map", log),
      outside: r.has() ? r.objects("outside", 1, LIMITS.outside, "array", outside) : (r.skip(), []),
    };
  });
  require_(faults.size === null, "SIZE", faults.size);
  const count = file.logs.flatMap((log) => log.runs).reduce((sum, run) => sum + run.entries.length, 0);
  require_(count <= LIMITS.entries, "SIZE", `${count} entries; a file has at most ${LIMITS.entries}`);
  if (file.streamName !== null) {
    require_(file.streamId !== null, "FORM", "stream_name is given without its stream_id");
    require_(utf8(file.streamName).length <= LIMITS.nameBytes, "SIZE", "stream_name is too long");
  }
  for (const { data } of file.outside) require_(data.length <= LIMITS.outsideBytes, "SIZE", "a proof is too large");
  return file;
}

// --- the hub --------------------------------------------------------------------------------------------------------

const MEMBERS = { identity: ["anchoring", "hub_id", "hub_keys", "ver"], key: ["hub_pk", "key_id", "valid_from"] };

async function readIdentity(raw) {
  const bad = (good, what) => require_(good, "FORM", `hub-identity: ${what}`);
  bad(raw.length <= LIMITS.identityBytes, "too large");
  let value;
  try {
    value = JSON.parse(text(raw));
  } catch {
    bad(false, "not JSON");
  }
  const isObject = (item) => typeof item === "object" && item !== null && !Array.isArray(item);
  const names = (item) => (isObject(item) ? Object.keys(item).sort().join() : "");
  const canonical = (item) =>
    Array.isArray(item) ? item.map(canonical)
      : isObject(item) ? Object.fromEntries(Object.keys(item).sort().map((name) => [name, canonical(item[name])]))
        : item;
  bad(same(utf8(JSON.stringify(canonical(value))), raw), "not the canonical JSON form");
  bad(names(value) === MEMBERS.identity.join(), "unknown or missing members");
  bad(value.ver === 1 && Array.isArray(value.hub_keys), "unknown version or shape");
  const isHash = (digits) => typeof digits === "string" && /^[0-9a-f]{64}$/.test(digits);
  const isTime = (number) => Number.isSafeInteger(number) && number >= 0;
  bad(typeof value.anchoring === "string" && isHash(value.hub_id), "a member has another type");
  const hubKeys = [];
  for (const key of value.hub_keys) {
    bad(isObject(key), "a key is no object");
    const optional = "valid_until" in key;
    bad(names(key) === [...MEMBERS.key, ...(optional ? ["valid_until"] : [])].sort().join(), "members of a key");
    bad(isHash(key.hub_pk) && isTime(key.valid_from) && (!optional || isTime(key.valid_until)), "a key");
    const hubPk = unhex(key.hub_pk);
    bad(key.key_id === hex(await sha256(hubPk)).slice(0, 16), "key_id is not that of hub_pk");
    hubKeys.push({
      hubPk, validFrom: BigInt(key.valid_from), validUntil: optional ? BigInt(key.valid_until) : null,
    });
  }
  const wrong = (good, what) => require_(good, "KEYS", `hub-identity: ${what}`);
  wrong(hubKeys.length >= 1 && hubKeys.length <= LIMITS.hubKeys, "a hub has 1 to 1024 keys");
  wrong(["data-directory", "fingerprint", "certificate"].includes(value.anchoring), "unknown anchoring");
  for (const [index, key] of hubKeys.entries()) {
    const before = hubKeys[index - 1];
    const order = before && (before.validFrom === key.validFrom
      ? compare(before.hubPk, key.hubPk) : Number(before.validFrom > key.validFrom) * 2 - 1);
    wrong(!before || order <= 0, "keys are not sorted");
    wrong(hubKeys.filter((other) => same(other.hubPk, key.hubPk)).length === 1, "a key is listed twice");
    wrong(key.validUntil === null || key.validUntil > key.validFrom, "a validity ends before it begins");
  }
  const hubId = await tagged("veen/hub-id", hubKeys[0].hubPk);
  wrong(value.hub_id === hex(hubId), "hub_id is not that of the first key");
  // The key that joined last signs the record: the greatest valid_from, then the smallest key.
  const current = hubKeys.reduce((best, key) =>
    key.validFrom > best.validFrom || (key.validFrom === best.validFrom && compare(key.hubPk, best.hubPk) < 0)
      ? key : best);
  return { hubId, keys: hubKeys, current };
}

function rotationsOf(identity) {
  return identity.keys.slice(1).map((key, index) => ({
    hubPk: key.hubPk, validFrom: key.validFrom,
    retiredPk: identity.keys[index].hubPk, retiredUntil: identity.keys[index].validUntil,
  }));
}

async function checkHub(file, pin) {
  const identity = await readIdentity(file.identity);
  const known = rotationsOf(identity);
  const records = [];
  for (const raw of file.rotations) {
    let record = readRotation(raw);
    const body = record.body;
    const match = body && body.retiredPk && known.some((other) =>
      same(other.hubPk, body.hubPk) && same(other.retiredPk, body.retiredPk) &&
      other.validFrom === body.validFrom && other.retiredUntil === body.retiredUntil);
    require_(match, "KEYS", `control record ${record.seq} is no rotation of this identity`);
    const signed = await ed25519Verify(body.retiredPk, await controlDigest(record), record.hubSig);
    require_(signed, "KEYS", `control record ${record.seq}: hub_sig is not right`);
    records.push(record);
  }
  for (let i = 1; i < records.length; i++) {
    require_(records[i - 1].seq < records[i].seq, "FORM", "rotations are not in the order of the control journal");
  }
  if (pin?.hubId) require_(same(pin.hubId, identity.hubId), "HUB", `this is the log of hub ${hex(identity.hubId)}`);
  let signers = identity.keys;
  if (pin && !pin.isRoot) {
    const trusted = new Set([hex(pin.hubId ? identity.keys[0].hubPk : pin.key)]);
    for (const { body } of records) if (trusted.has(hex(body.retiredPk))) trusted.add(hex(body.hubPk));
    const listed = identity.keys.some((key) => same(key.hubPk, pin.key));
    require_(listed, "HUB", `the given key ${hex(pin.key)} is not a key of this hub`);
    require_(trusted.has(hex(pin.key)), "HUB", "no rotation in the file leads from hub_id to the given key");
    const reached = trusted.has(hex(identity.current.hubPk));
    require_(reached, "HUB", "no rotation in the file leads from the given key to the present one");
    signers = identity.keys.filter((key) => trusted.has(hex(key.hubPk)));
  }
  const signer = pin?.isRoot ? pin.key : identity.current.hubPk;
  const digest = await tagged("veen/hub-identity", file.identity);
  require_(await ed25519Verify(signer, digest, file.identitySig), "KEYS", "the identity is not signed by its key");
  return { ...identity, signers };
}

async function signerOf(hub, candidates, digest, signature, code, where) {
  // The newest key first, as it signs while keys overlap.
  for (const key of [...candidates].reverse()) {
    if (!hub.signers.includes(key)) continue;
    if (await ed25519Verify(key.hubPk, digest, signature)) return key.hubPk;
  }
  for (const key of candidates) {
    const foreign = await ed25519Verify(key.hubPk, digest, signature);
    require_(!foreign, "HUB", `${where} is signed by key ${hex(key.hubPk)}, to which the given key does not lead`);
  }
  throw new Fault(code, `${where}: hub_sig is by no key of the hub that was valid then`);
}

// --- logs and entries -----------------------------------------------------------------------------------------------

const labelOf = (routingKey, streamId, epoch) => tagged("veen/label", routingKey, streamId, u64be(epoch));

async function checkCheckpoint(raw, log, hub, file, routingKey, epochSec) {
  const checkpoint = readCheckpoint(raw);
  const where = `CHECKPOINT ${checkpoint.uptoSeq}`;
  const about = same(checkpoint.labelCurr, log.label) && checkpoint.epoch === log.epoch;
  require_(about, "CHECKPOINT", `${where} is about another log`);
  if (file.streamId !== null && !same(checkpoint.labelPrev, checkpoint.labelCurr)) {
    const before = log.epoch > 0n && same(
      checkpoint.labelPrev, await labelOf(routingKey, file.streamId, log.epoch - 1n),
    );
    require_(before, "CHECKPOINT", `${where}: label_prev is not the label of the preceding epoch`);
  }
  const [start, end] = [log.epoch * epochSec, (log.epoch + 1n) * epochSec];
  const candidates = epochSec === 0n ? hub.keys : hub.keys.filter(
    (key) => key.validFrom < end && (key.validUntil === null || start < key.validUntil),
  );
  const digest = await checkpointDigest(checkpoint);
  await signerOf(hub, candidates, digest, checkpoint.hubSig, "CHECKPOINT", where);
  let unknown = checkpoint.witnessSigs.length;
  for (const key of hub.keys) {
    for (const signature of checkpoint.witnessSigs) {
      if (await ed25519Verify(key.hubPk, digest, signature)) {
        unknown -= 1;
        break;
      }
    }
  }
  return { ...checkpoint, unknown };
}

async function checkFrame(log, hub, file, routingKey, epochSec) {
  const decoded = log.checkpoints.map(readCheckpoint); // all of them are read before one is judged
  const checkpoints = [];
  for (const raw of log.checkpoints) {
    checkpoints.push(await checkCheckpoint(raw, log, hub, file, routingKey, epochSec));
  }
  for (let i = 1; i < decoded.length; i++) {
    require_(decoded[i - 1].uptoSeq < decoded[i].uptoSeq, "FORM", "checkpoints are not listed by upto_seq, each once");
  }
  const complete = log.consistency.length === checkpoints.length - 1;
  require_(complete, "FORM", "a consistency_proof from one checkpoint to the next is missing or superfluous");
  for (const [index, raw] of log.consistency.entries()) {
    const [older, newer] = [checkpoints[index], checkpoints[index + 1]];
    await checkConsistency(readConsistencyProof(raw), older.uptoSeq, older.mmrRoot, newer.uptoSeq, newer.mmrRoot);
  }
  const proofs = log.runs.map((run) => readRangeProof(run.proof));
  for (let i = 1; i < proofs.length; i++) {
    const apart = proofs[i].firstSeq > proofs[i - 1].lastSeq + 1n;
    require_(apart, "FORM", "runs do not ascend with a gap between them");
  }
  return { checkpoints, proofs };
}

async function checkRun(run, proof, log, checkpoint, hub, profileIds, progress) {
  const decoded = run.entries.map((entry) => ({ ...entry, msg: readMsg(entry.msg), receipt: readReceipt(entry.receipt) }));
  let seq = proof.firstSeq;
  for (const { msg, receipt } of decoded) {
    require_(receipt.streamSeq === seq, "GAP", `entry ${seq} is expected here, found ${receipt.streamSeq}`);
    const ours = same(msg.label, log.label) && same(receipt.label, log.label);
    require_(ours, "STREAM", `entry ${seq} is of another log`);
    require_(profileIds.has(hex(msg.profileId)), "STREAM", `entry ${seq}: its profile is not listed`);
    require_(same(await leafHash(msg), receipt.leafHash), "RECEIPT", `entry ${seq}: the RECEIPT is for another message`);
    seq += 1n;
  }
  require_(proof.lastSeq === seq - 1n, "GAP", `entries up to ${proof.lastSeq} are announced, the last is ${seq - 1n}`);
  for (const { msg, receipt } of decoded) {
    const where = `entry ${receipt.streamSeq}`;
    require_(same(await sha256(msg.ciphertext), msg.ctHash), "AUTHOR", `${where}: ct_hash is not that of the ciphertext`);
    const signed = await ed25519Verify(msg.clientId, await msgDigest(msg), msg.sig);
    require_(signed, "AUTHOR", `${where}: the signature is not that of its author`);
  }
  for (const { msg, receipt } of decoded) {
    require_(splitCiphertext(msg.ciphertext) !== null, "AUTHOR", `entry ${receipt.streamSeq}: its parts do not fit`);
  }
  const tree = new Tree(proof.firstSeq - 1n, proof.before);
  for (const [index, entry] of decoded.entries()) {
    const { receipt } = entry;
    if (index % 100 === 99) progress(index + 1);
    await tree.append(receipt.leafHash);
    const where = `RECEIPT ${receipt.streamSeq}`;
    require_(same(await tree.root(), receipt.mmrRoot), "PROOF", `${where}: its entry does not lead to its root`);
    const valid = hub.keys.filter((key) =>
      key.validFrom <= receipt.hubTs && (key.validUntil === null || receipt.hubTs < key.validUntil));
    entry.hubPk = await signerOf(hub, valid, await receiptDigest(receipt), receipt.hubSig, "RECEIPT", where);
  }
  await checkRange(proof, decoded.map(({ receipt }) => receipt.leafHash), checkpoint.uptoSeq, checkpoint.mmrRoot);
  return decoded;
}

class Numbering {
  // An author's own numbers: those left out are no more than the entries that the file leaves out (D-189).
  constructor() {
    this.last = new Map();
    this.shown = 0n;
  }

  begin(firstSeq) {
    this.unseen = firstSeq - 1n - this.shown;
  }

  check(msg, seq) {
    const author = hex(msg.clientId);
    const [clientSeq, prevAck, known] = this.last.get(author) ?? [0n, 0n, 0n];
    const good = clientSeq < msg.clientSeq && msg.clientSeq <= clientSeq + 1n + this.unseen - known;
    require_(good, "GAP", `entry ${seq}: the author's number ${msg.clientSeq} follows ${clientSeq}`);
    require_(prevAck <= msg.prevAck && msg.prevAck < seq, "GAP", `entry ${seq}: prev_ack ${msg.prevAck} is not possible`);
    this.last.set(author, [msg.clientSeq, msg.prevAck, this.unseen]);
    this.shown += 1n;
  }
}

async function contentOf(entry) {
  if (entry.stated) {
    const hdr = readPayloadHdr(entry.stated.hdr);
    return { content: "stated", schema: hex(hdr.schema), body: entry.stated.body };
  }
  if (!entry.opening) return { content: "sealed", schema: null, body: null };
  const opened = await openMessage(entry.opening, entry.msg);
  require_(opened, "OPENING", `entry ${entry.receipt.streamSeq}: its opening does not open it`);
  return { content: "opened", schema: hex(opened.hdr.schema), body: opened.body };
}

// The pin: a key of the hub, perhaps with its hub_id, or the root of an ephemeral hub.
function parsePin(words_) {
  const match = /^(?<root>root:)?(?:ed25519:)?(?<key>[0-9a-f]{64})(?::(?<hubId>[0-9a-f]{64}))?$/.exec(
    words_.trim().toLowerCase(),
  );
  if (match === null) return null;
  const { root, key, hubId } = match.groups;
  return { isRoot: Boolean(root), key: unhex(key), hubId: hubId ? unhex(hubId) : null };
}

async function verifyEvidence(data, pin, progress = () => {}) {
  // Everything that the file shows, all of it checked; throws a Fault at the first check that fails.
  const file = readBody(await readFrame(data));
  const hub = await checkHub(file, pin);
  const profiles = file.profiles.map(readProfile);
  const ids = await Promise.all(file.profiles.map((raw) => tagged("veen/profile", raw)));
  for (let i = 1; i < ids.length; i++) {
    require_(compare(ids[i - 1], ids[i]) < 0, "FORM", "profiles are not listed by profile_id, each once");
  }
  const epochSec = profiles[0].epochSec;
  require_(profiles.every((profile) => profile.epochSec === epochSec), "FORM", "the profiles differ in epoch_sec");
  const routingKey = await tagged("veen/routing_key", hub.hubId);
  if (file.streamName !== null) {
    require_(file.streamName.length > 0, "FORM", "stream_name is empty");
    const raw = /^[0-9a-fA-F]{64}$/.test(file.streamName);
    const id = raw ? unhex(file.streamName.toLowerCase()) : await sha256(utf8(file.streamName));
    require_(same(id, file.streamId), "STREAM", "stream_id is not that of stream_name");
  }
  for (const log of file.logs) {
    const good = file.streamId === null || same(log.label, await labelOf(routingKey, file.streamId, log.epoch));
    require_(good, "STREAM", `label ${hex(log.label)} is not that of the stream in epoch ${log.epoch}`);
  }
  for (let i = 1; i < file.logs.length; i++) {
    const [a, b] = [file.logs[i - 1], file.logs[i]];
    const ascends = a.epoch < b.epoch || (a.epoch === b.epoch && compare(a.label, b.label) < 0);
    require_(ascends, "FORM", "logs are not listed by epoch and label, each once");
  }
  const profileIds = new Set(ids.map(hex));
  const frames = [];
  for (const log of file.logs) frames.push(await checkFrame(log, hub, file, routingKey, epochSec));
  const decoded = [];
  const logs = [];
  for (const [index, log] of file.logs.entries()) {
    const { checkpoints, proofs } = frames[index];
    const numbering = new Numbering();
    for (const [at, run] of log.runs.entries()) {
      const before = decoded.length;
      const entries = await checkRun(
        run, proofs[at], log, checkpoints[0], hub, profileIds, (count) => progress(before + count),
      );
      numbering.begin(proofs[at].firstSeq);
      for (const { msg, receipt } of entries) numbering.check(msg, receipt.streamSeq);
      for (const entry of entries) decoded.push(entry); // a call has not room for 65,536 arguments everywhere
    }
    const runs = proofs.map(({ firstSeq, lastSeq }) => [firstSeq, lastSeq]);
    logs.push({
      label: hex(log.label), epoch: log.epoch, runs, size: checkpoints[0].uptoSeq, root: hex(checkpoints[0].mmrRoot),
      latest: checkpoints.at(-1).uptoSeq,
      complete: runs.length === 1 && runs[0][0] === 1n && runs[0][1] === checkpoints[0].uptoSeq,
      unknownWitnesses: checkpoints.reduce((sum, { unknown }) => sum + unknown, 0),
    });
  }
  const used = new Set(decoded.map(({ msg }) => hex(msg.profileId)));
  require_(used.size === profileIds.size, "FORM", "the file lists a profile that no entry names");
  const entries = [];
  for (const entry of decoded) {
    entries.push({
      seq: entry.receipt.streamSeq, label: hex(entry.receipt.label), msgId: hex(entry.receipt.leafHash),
      author: hex(entry.msg.clientId), hubTs: entry.receipt.hubTs, hubPk: hex(entry.hubPk),
      root: hex(entry.receipt.mmrRoot), bytes: entry.msg.ciphertext.length, ...(await contentOf(entry)),
    });
  }
  const hashes = new Set(await Promise.all(file.logs.flatMap((log) => log.checkpoints).map(async (raw) => hex(await sha256(raw)))));
  for (const proof of file.outside) {
    require_(hashes.has(hex(proof.checkpointHash)), "FORM", `a ${proof.kind} is about a checkpoint that is not in the file`);
  }
  return {
    hubId: hex(hub.hubId), hubKeys: hub.keys.map((key) => hex(key.hubPk)),
    signers: hub.signers.map((key) => hex(key.hubPk)), pinned: Boolean(pin),
    streamName: file.streamName, streamId: file.streamId && hex(file.streamId), logs, entries,
    outside: file.outside.map(({ kind }) => kind), sha256: hex(await sha256(data)),
  };
}

export {
  Fault, Tree, aeadOpen, checkConsistency, checkInclusion, checkRange, checkpointDigest, decodeCbor, ed25519Verify,
  encodeCbor, hex, hpkeContext, leafHash, missingSupport, msgDigest, openMessage, parsePin, readCheckpoint,
  readConsistencyProof, readInclusionProof, readMsg, readProfile, readPayloadHdr, readRangeProof, readReceipt,
  receiptDigest, sha256, tagged, text, unhex, verifyEvidence,
};
