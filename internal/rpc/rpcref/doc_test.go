// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"bytes"
	"encoding/binary"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe/tpcapture"
)

// TestDocumentedControlStream compares the table of docs/wire/tensorpipe.md with a frame.
func TestDocumentedControlStream(t *testing.T) {
	text, err := os.ReadFile("../../../docs/wire/tensorpipe.md")
	if err != nil {
		t.Fatal(err)
	}
	f := rrefcore.Frame{
		From: 0x11, To: 0x12, Epoch: 0x13, ToEpoch: 0x14, Session: 0x15, Floor: 0x16, First: 0x17, Ack: 0x18, Stamp: 0x19, Echo: 0x1a,
		Msgs: []rrefcore.Message{{
			Kind: rrefcore.Handoff, Code: 0x21, Owner: 0x22, OwnerEpoch: 0x23, Key: rrefcore.Key{0x24, 15: 0x25},
			ID: rrefcore.ID{On: 1, N: 0x26, Epoch: 0x13}, Fork: rrefcore.ID{On: 2, N: 0x27, Epoch: 0x14}, Root: rrefcore.ID{On: 3, N: 0x28},
		}},
	}
	frame := appendControl(nil, f)
	parts := map[string][]byte{"head": frame[:controlHead], "message": frame[controlHead:]}
	number := func(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
	id := func(how, on byte, n uint64) []byte { return append([]byte{how, on, 0}, number(n)...) }
	want := map[string][]byte{
		"sender": {0x11, 0}, "receiver": {0x12, 0}, "incarnation of the sender": number(0x13),
		"incarnation of the receiver, 0 if unknown": number(0x14),
		"session": number(0x15)[:4], "floor": number(0x16), "number of the first message": number(0x17),
		"number of the next message expected": number(0x18),
		"clock of the sender":                 number(0x19), "newest clock seen of the receiver": number(0x1a),
		"number of messages":               {1, 0, 0, 0},
		"kind, plus 0x80 if a key follows": {byte(rrefcore.Handoff) | 0x80}, "code": {0x21}, "owner": {0x22, 0},
		"incarnation of the owner": number(0x23),
		"object":                   id(1, 1, 0x26), "fork": id(2, 2, 0x27), "root": id(0, 3, 0x28), "key": f.Msgs[0].Key[:],
	}
	rows := tpcapture.Table(string(text), "The control stream of references (checked)")
	if len(rows) != len(want) {
		t.Fatalf("%d rows, %d fields", len(rows), len(want))
	}
	covered := map[string]int{}
	for _, row := range rows {
		offset, err1 := strconv.Atoi(row[1])
		size, err2 := strconv.Atoi(row[2])
		if err1 != nil || err2 != nil || offset+size > len(parts[row[0]]) {
			t.Fatalf("row %q", row)
		}
		if got := parts[row[0]][offset : offset+size]; !bytes.Equal(got, want[row[3]]) {
			t.Errorf("%s: %x, want %x", row[3], got, want[row[3]])
		}
		covered[row[0]] += size
	}
	for part, b := range parts {
		if covered[part] != len(b) {
			t.Errorf("%d of the %d bytes of a %s are described", covered[part], len(b), part)
		}
	}
	if _, rest, ok := strings.Cut(string(text), "Frames of type 0x"); !ok ||
		!strings.HasPrefix(rest, strconv.FormatInt(int64(rpcsession.FrameControl), 16)+" ") {
		t.Errorf("the type of control frames is %#x", int(rpcsession.FrameControl))
	}
	if _, rest, ok := strings.Cut(string(text), "The kinds are "); ok {
		list, _, _ := strings.Cut(rest, ".\n")
		for i, item := range strings.Split(strings.Join(strings.Fields(list), " "), ", ") {
			kind := rrefcore.Kind(i + 1)
			name := strings.ReplaceAll(kind.String(), "-", " ")
			if kind == rrefcore.Handoff {
				name = "hand-off"
			}
			if item != strconv.Itoa(i+1)+" "+name {
				t.Errorf("kind %d is %q, the page says %q", i+1, kind, item)
			}
		}
	}
}
