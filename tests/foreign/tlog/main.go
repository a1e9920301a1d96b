// A verifier of notes, cosignatures, policies and proofs that shares no code with VEEN: transparency-dev's formats and
// merkle modules, and Go's sumdb/note. The tests hand it files that VEEN wrote, and VEEN what it writes.
//
//	tlog verify DIR   DIR/note, vkey, policy, proof, leaf -> {"origin", "size", "root", "index", "signatures"}
//	tlog cosign NAME  a note on standard input -> {"vkey", "note"}: cosigned by a new key of that name
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/transparency-dev/formats/log"
	fnote "github.com/transparency-dev/formats/note"
	tproof "github.com/transparency-dev/formats/proof"
	"github.com/transparency-dev/formats/witness"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"
)

func read(directory, name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(directory, name))
}

func verify(directory string) (map[string]any, error) {
	parts := map[string][]byte{}
	for _, name := range []string{"note", "vkey", "policy", "proof", "leaf"} {
		data, err := read(directory, name)
		if err != nil {
			return nil, err
		}
		parts[name] = data
	}
	verifier, err := fnote.NewVerifier(strings.TrimSpace(string(parts["vkey"])))
	if err != nil {
		return nil, fmt.Errorf("vkey: %w", err)
	}
	policy, err := witness.ParsePolicy(parts["policy"])
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	witnesses := []note.Verifier{}
	for _, key := range policy.Endpoints() {
		witnesses = append(witnesses, key)
	}
	checkpoint, rest, opened, err := log.ParseCheckpoint(parts["note"], verifier.Name(), verifier, witnesses...)
	if err != nil {
		return nil, err
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("the checkpoint has extension lines: %q", rest)
	}
	if !policy.Satisfied(parts["note"]) {
		return nil, fmt.Errorf("policy: not satisfied")
	}
	var bundle tproof.TLogProof
	if err := bundle.Unmarshal(parts["proof"]); err != nil {
		return nil, err
	}
	if !bytes.Equal(bundle.Marshal(), parts["proof"]) {
		return nil, fmt.Errorf("proof: another encoding than the one of this module")
	}
	under, _, _, err := log.ParseCheckpoint(bundle.Checkpoint, verifier.Name(), verifier, witnesses...)
	if err != nil {
		return nil, fmt.Errorf("proof: %w", err)
	}
	hashes := [][]byte{}
	for _, hash := range bundle.Hashes {
		hashes = append(hashes, hash[:])
	}
	leaf := rfc6962.DefaultHasher.HashLeaf(parts["leaf"])
	if err := proof.VerifyInclusion(rfc6962.DefaultHasher, bundle.Index, under.Size, leaf, hashes, under.Hash); err != nil {
		return nil, fmt.Errorf("proof: %w", err)
	}
	names := []string{}
	for _, signature := range opened.Sigs {
		names = append(names, signature.Name)
	}
	return map[string]any{
		"origin": checkpoint.Origin, "size": checkpoint.Size, "root": hex.EncodeToString(checkpoint.Hash),
		"index": bundle.Index, "signatures": names,
	}, nil
}

func cosign(name string) (map[string]any, error) {
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	skey, vkey, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		return nil, err
	}
	cosigning, err := fnote.VKeyToCosignatureV1(vkey)
	if err != nil {
		return nil, err
	}
	signer, err := fnote.NewSignerForCosignatureV1(skey)
	if err != nil {
		return nil, err
	}
	end := bytes.LastIndex(data, []byte("\n\n"))
	if end < 0 {
		return nil, fmt.Errorf("no note")
	}
	signed, err := note.Sign(&note.Note{Text: string(data[:end+1])}, signer)
	if err != nil {
		return nil, err
	}
	line := signed[bytes.LastIndex(signed, []byte("\n\n"))+2:]
	return map[string]any{"vkey": cosigning, "note": string(data) + string(line)}, nil
}

func main() {
	result, err := map[string]any{}, error(nil)
	switch {
	case len(os.Args) == 3 && os.Args[1] == "verify":
		result, err = verify(os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "cosign":
		result, err = cosign(os.Args[2])
	default:
		err = fmt.Errorf("usage: tlog verify DIR | tlog cosign NAME")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		os.Exit(1)
	}
}
