// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"github.com/cohort-dist/cohort"
)

// Each side begins with two frames. Its hello says who it is and carries a nonce; its proof, sent when the other hello has
// come, shows that it knows the secret which the name's entry in the store publishes: an HMAC under that secret over both
// nonces, both names and who dialled. So the secret itself never travels, what was recorded on one connection is of no
// use on another, and a process that dials two workers cannot pass the proof of one on to the other.

// Identity is what each side sends in its hello.
type Identity struct {
	Name        string
	ID          int16
	Incarnation uint64
}

const (
	nonceSize = 16
	proofSize = sha256.Size
	maxName   = 127
)

type nonce [nonceSize]byte

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

func (id Identity) frame(n nonce) *Frame {
	payload := binary.LittleEndian.AppendUint16(make([]byte, 0, 2+nonceSize+len(id.Name)), uint16(id.ID)) //nolint:gosec // two's complement
	payload = append(payload, n[:]...)
	return &Frame{Type: Hello, Incarnation: id.Incarnation, Payload: append(payload, id.Name...)}
}

// parseHello reads the hello of the other side.
func parseHello(f *Frame) (id Identity, n nonce, err error) {
	const head = 2 + nonceSize
	if f.Type != Hello || len(f.Payload) <= head || len(f.Payload) > head+maxName || len(f.Storages) > 0 {
		return Identity{}, n, bad("the first frame is not a hello (type %#x, %d bytes)", f.Type, len(f.Payload))
	}
	copy(n[:], f.Payload[2:])
	return Identity{Name: string(f.Payload[head:]), ID: i16(f.Payload), Incarnation: f.Incarnation}, n, nil
}

// proof is what a side that knows the secret of its name answers to the other side's hello. Without a secret it is empty.
type proof struct {
	of, to   Identity
	own, far nonce // of the side that proves, and of the other one
	dialled  bool  // the side that proves has dialled
}

func (p proof) sum(secret []byte) []byte {
	if len(secret) == 0 {
		return nil
	}
	role := byte(0)
	if p.dialled {
		role = 1
	}
	mac := hmac.New(sha256.New, secret)
	text := append([]byte("cohort transport proof 1"), role)
	text = append(append(text, p.far[:]...), p.own[:]...)
	for _, id := range [...]Identity{p.of, p.to} {
		text = binary.LittleEndian.AppendUint64(text, id.Incarnation)
		text = binary.LittleEndian.AppendUint16(text, uint16(id.ID)) //nolint:gosec // two's complement
		text = append(append(text, byte(len(id.Name))), id.Name...)  //nolint:gosec // at most maxName
	}
	mac.Write(text)
	return mac.Sum(nil)
}

// check compares the frame of a side with the secret that its name has published.
func (p proof) check(f *Frame, published []byte) (proven bool, err error) {
	if f.Type != proofFrame || len(f.Payload) != 0 && len(f.Payload) != proofSize || len(f.Storages) > 0 {
		return false, bad("the second frame is not a proof (type %#x, %d bytes)", f.Type, len(f.Payload))
	}
	if len(published) == 0 {
		return false, nil
	}
	if !hmac.Equal(f.Payload, p.sum(published)) {
		e := cohort.Newf("cohort transport: hello", cohort.Protocol,
			"the peer claims the name %q but does not know the secret that this name has published in the store", p.of.Name)
		e.Peer = p.of.Name
		return false, e
	}
	return true, nil
}
