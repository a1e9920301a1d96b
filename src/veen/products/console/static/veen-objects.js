// Verifies single wire objects in the browser: RECEIPT, CHECKPOINT, MSG, inclusion and consistency proofs, reports of
// equivocation. It stands on veen-verify.js, which is the module of the evidence page, byte for byte. No network, no DOM.
//
// What an object needs and was not given is a Missing, never a pass. Every refusal is a Fault.

import {
  Fault, checkConsistency, checkInclusion, checkpointDigest, decodeCbor, ed25519Verify, encodeCbor, hex, leafHash,
  msgDigest, readCheckpoint, readConsistencyProof, readInclusionProof, readMsg, readReceipt, receiptDigest, sha256,
} from "./veen-verify.js";

const MAX_BYTES = 16 * 1024 * 1024;

class Missing extends Error {}

const require_ = (good, code, what) => {
  if (!good) throw new Fault(code, what);
};

const ascii = (bytes) => String.fromCharCode(...bytes.subarray(0, 4096));

// A file with hex digits is the bytes that they stand for, as the command line reads it.
function bytesOf(data) {
  require_(data.length <= MAX_BYTES, "SIZE", "the file is too large for one object");
  if (data.length > 0 && data.length <= 8192 && /^\s*(?:[0-9a-fA-F]{2})+\s*$/.test(ascii(data).slice(0, data.length))) {
    const digits = new TextDecoder().decode(data).trim();
    if (/^(?:[0-9a-fA-F]{2})+$/.test(digits)) return Uint8Array.from(digits.match(/../g), (pair) => parseInt(pair, 16));
  }
  return data;
}

const first = (value, count) => Array.isArray(value) && value.length === count && value[0] === 1n;
const isMap = (value) => value !== null && typeof value === "object" && Array.isArray(value.pairs);
const field = (value, key) => value.pairs.find(([name]) => name === key)?.[1];

// The kind by the shape; the reader of the kind then checks every field.
function kindOf(value) {
  if (first(value, 10)) return "MSG";
  if (first(value, 7) && typeof value[2] === "bigint") return "RECEIPT";
  if ((first(value, 7) || first(value, 8)) && value[2] instanceof Uint8Array) return "CHECKPOINT";
  if (isMap(value) && field(value, 1n) === 1n) {
    if (Array.isArray(field(value, 2n)) && Array.isArray(field(value, 3n)) && value.pairs.length === 4) return "equivocation";
    if (field(value, 2n) instanceof Uint8Array && value.pairs.length === 4) return "mmr_proof";
    if (typeof field(value, 2n) === "bigint" && value.pairs.length === 5) return "consistency_proof";
  }
  return null;
}

function readAny(data) {
  const raw = bytesOf(data);
  const value = decodeCbor(raw);
  const kind = kindOf(value);
  const readers = {
    MSG: readMsg, RECEIPT: readReceipt, CHECKPOINT: readCheckpoint, mmr_proof: readInclusionProof,
    consistency_proof: readConsistencyProof, equivocation: () => readEquivocation(value),
  };
  require_(kind !== null, "FORM", "this browser knows no object of this form; the console may");
  return { kind, raw, object: readers[kind](raw) };
}

function readEquivocation(value) {
  require_(value.pairs.every(([name], index) => name === BigInt(index + 1)), "FORM", "equivocation: fields out of order");
  const keys = field(value, 2n);
  require_(keys.length >= 1 && keys.length <= 2, "FORM", "equivocation: one key, or one for each statement");
  require_(keys.every((key) => key instanceof Uint8Array && key.length === 32), "FORM", "equivocation: a key has 32 bytes");
  const statements = [field(value, 3n), field(value, 4n)].map((tree) => {
    require_(Array.isArray(tree), "FORM", "equivocation: expected a RECEIPT or a CHECKPOINT");
    const raw = encodeCbor(tree);
    const statement = readAny(raw);
    require_(["RECEIPT", "CHECKPOINT"].includes(statement.kind), "FORM", "equivocation: expected a RECEIPT or a CHECKPOINT");
    return statement;
  });
  return { keys, statements };
}

const digestOf = ({ kind, object }) => (kind === "RECEIPT" ? receiptDigest(object) : checkpointDigest(object));
const sizeOf = ({ kind, object }) => (kind === "RECEIPT" ? object.streamSeq : object.uptoSeq);
const labelOf = ({ kind, object }) => hex(kind === "RECEIPT" ? object.label : object.labelCurr);

async function signedBy(statement, keys) {
  if (keys.length === 0) throw new Missing("the key of the hub");
  const digest = await digestOf(statement);
  for (const key of keys) if (await ed25519Verify(key, digest, statement.object.hubSig)) return key;
  throw new Fault("SIG", `${statement.kind}: hub_sig is by no key that was given`);
}

const signatureLine = (kind, key) => `hub_sig of the ${kind} is by hub key ${hex(key)}`;

async function checkMsg({ object }) {
  require_(hex(await sha256(object.ciphertext)) === hex(object.ctHash), "CT_HASH", "ct_hash is not the hash of the ciphertext");
  const good = await ed25519Verify(object.clientId, await msgDigest(object), object.sig);
  require_(good, "SIG", "MSG: sig is not by client_id");
  return ["ct_hash is the hash of the ciphertext", `sig is by client_id ${hex(object.clientId)}`];
}

async function checkStatement(statement, keys, related) {
  const lines = [signatureLine(statement.kind, await signedBy(statement, keys))];
  if (statement.kind === "RECEIPT") {
    for (const msg of related.filter(({ kind }) => kind === "MSG")) {
      const fits = hex(await leafHash(msg.object)) === hex(statement.object.leafHash);
      require_(fits, "LEAF", "the RECEIPT is for another message");
      lines.push("leaf_hash is that of the MSG");
    }
  } else if (statement.object.witnessSigs.length) {
    lines.push(`not checked: ${statement.object.witnessSigs.length} witness signatures by keys not given`);
  }
  return lines;
}

async function checkMembership({ object }, keys, related) {
  const statements = related.filter(({ kind }) => kind === "RECEIPT" || kind === "CHECKPOINT");
  const entry = statements.find(({ kind, object: of }) => kind === "RECEIPT" && hex(of.leafHash) === hex(object.leafHash));
  if (entry === undefined) throw new Missing("the RECEIPT of the entry that the proof is for");
  const lines = [signatureLine("RECEIPT of the entry", await signedBy(entry, keys))];
  const roots = statements.filter((one) => labelOf(one) === labelOf(entry) && sizeOf(one) >= sizeOf(entry));
  let fault = null;
  for (const root of roots.sort((a, b) => (sizeOf(a) < sizeOf(b) ? 1 : -1))) {
    try {
      await signedBy(root, keys);
      await checkInclusion(object, entry.object.leafHash, sizeOf(entry), sizeOf(root), root.object.mmrRoot);
      return [...lines, `entry ${sizeOf(entry)} stands under the root of ${sizeOf(root)} entries that the hub signed`];
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      fault ??= error;
    }
  }
  throw fault;
}

async function checkGrowth({ object }, keys, related) {
  const statements = related.filter(({ kind }) => kind === "RECEIPT" || kind === "CHECKPOINT");
  const older = statements.find((one) => sizeOf(one) === object.fromSize);
  const newer = statements.find((one) => sizeOf(one) === object.toSize && (older === undefined || labelOf(one) === labelOf(older)));
  if (older === undefined || newer === undefined) {
    throw new Missing(`a signed RECEIPT or CHECKPOINT of size ${object.fromSize} and one of size ${object.toSize}`);
  }
  const lines = [];
  for (const statement of [older, newer]) lines.push(signatureLine(statement.kind, await signedBy(statement, keys)));
  await checkConsistency(object, object.fromSize, older.object.mmrRoot, object.toSize, newer.object.mmrRoot);
  return [...lines, `the log of ${object.toSize} entries only adds to the log of ${object.fromSize}`];
}

async function checkEquivocation({ object }, keys) {
  const [one, two] = object.statements;
  require_(hex(one.raw) < hex(two.raw), "EVIDENCE", "the two statements are not in the order of their bytes");
  const signers = object.keys.length === 2 ? object.keys : [object.keys[0], object.keys[0]];
  if (object.keys.length === 2) require_(hex(signers[0]) !== hex(signers[1]), "EVIDENCE", "one key is listed twice");
  await signedBy(one, [signers[0]]);
  await signedBy(two, [signers[1]]);
  require_(labelOf(one) === labelOf(two) && sizeOf(one) === sizeOf(two), "EVIDENCE", "the statements are about different positions");
  const leaves = one.kind === "RECEIPT" && two.kind === "RECEIPT" && hex(one.object.leafHash) !== hex(two.object.leafHash);
  require_(leaves || hex(one.object.mmrRoot) !== hex(two.object.mmrRoot), "EVIDENCE", "the two statements agree");
  const pinned = keys.map(hex);
  const ours = signers.every((key) => pinned.includes(hex(key)));
  return [
    `both statements are signed, by ${[...new Set(signers.map(hex))].join(" and ")}`,
    `they are about entry ${sizeOf(one)} of one log, and both cannot be true`,
    ours ? "the keys are those of the hub of this console: it is convicted" : "the keys are not those that were given: whose they are is for you to know",
  ];
}

// The kind and the checks that the object passed; Fault at the first that fails, Missing if more is needed.
async function verifyObject(data, related, keys) {
  const subject = readAny(data);
  const others = related.map(readAny);
  const checks = {
    MSG: () => checkMsg(subject),
    RECEIPT: () => checkStatement(subject, keys, others),
    CHECKPOINT: () => checkStatement(subject, keys, others),
    mmr_proof: () => checkMembership(subject, keys, others),
    consistency_proof: () => checkGrowth(subject, keys, others),
    equivocation: () => checkEquivocation(subject, keys),
  };
  return { kind: subject.kind, checks: await checks[subject.kind]() };
}

export { Missing, readAny, verifyObject };
