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
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe/tpcapture"
)

func anyID(epochs ...rrefcore.Epoch) *rapid.Generator[rrefcore.ID] {
	return rapid.Custom(func(t *rapid.T) rrefcore.ID {
		if rapid.IntRange(0, 3).Draw(t, "none") == 0 {
			return rrefcore.ID{}
		}
		return rrefcore.ID{
			On: rrefcore.Worker(rapid.Int16().Draw(t, "on")), N: rapid.Uint64().Draw(t, "n"),
			Epoch: rapid.OneOf(rapid.SampledFrom(epochs),
				rapid.Map(rapid.Uint64(), func(u uint64) rrefcore.Epoch { return rrefcore.Epoch(u) })).Draw(t, "epoch"),
		}
	})
}

func TestControlFrame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rrefcore.Frame{
			From: rrefcore.Worker(rapid.Int16().Draw(t, "from")), To: rrefcore.Worker(rapid.Int16().Draw(t, "to")),
			Epoch: rrefcore.Epoch(rapid.Uint64().Draw(t, "epoch")), ToEpoch: rrefcore.Epoch(rapid.Uint64().Draw(t, "to epoch")),
			Session: rapid.Uint32().Draw(t, "session"), Floor: rapid.Uint64().Draw(t, "floor"), First: rapid.Uint64().Draw(t, "first"),
			Ack: rapid.Uint64().Draw(t, "ack"), Stamp: time.Duration(rapid.Int64().Draw(t, "stamp")),
			Echo: time.Duration(rapid.Int64().Draw(t, "echo")),
		}
		ids := anyID(0, f.Epoch, f.ToEpoch)
		for range rapid.IntRange(0, 5).Draw(t, "messages") {
			f.Msgs = append(f.Msgs, rrefcore.Message{
				Kind: rrefcore.Kind(rapid.IntRange(int(rrefcore.ForkRequest), int(rrefcore.Withdraw)).Draw(t, "kind")),
				Code: rrefcore.Code(rapid.Byte().Draw(t, "code")),
				ID:   ids.Draw(t, "id"), Fork: ids.Draw(t, "fork"), Root: ids.Draw(t, "root"),
				Owner: rrefcore.Worker(rapid.Int16().Draw(t, "owner")), OwnerEpoch: rrefcore.Epoch(rapid.Uint64().Draw(t, "owner epoch")),
				Key: rapid.SampledFrom([]rrefcore.Key{{}, {1}, {15: 2}}).Draw(t, "key"),
			})
		}
		b := appendControl(nil, f)
		got, err := parseControl(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(f, got); diff != "" {
			t.Fatal(diff)
		}
		for n := range b {
			if _, err := parseControl(b[:n], nil); err == nil {
				t.Fatalf("a frame cut to %d of %d bytes was taken", n, len(b))
			}
		}
	})
}

func FuzzControlFrame(f *testing.F) {
	f.Add(appendControl(nil, rrefcore.Frame{
		From: 1, To: 2, Epoch: 3,
		Msgs: []rrefcore.Message{
			{Kind: rrefcore.Delete, ID: rrefcore.ID{On: 1, N: 2, Epoch: 3}},
			{Kind: rrefcore.Handoff, Key: rrefcore.Key{7}},
		},
	}))
	f.Fuzz(func(t *testing.T, data []byte) {
		frame, err := parseControl(data, nil)
		if err != nil {
			return
		}
		again, err := parseControl(appendControl(nil, frame), nil)
		if err != nil || !cmp.Equal(frame, again) {
			t.Fatalf("%+v, %+v, %v", frame, again, err)
		}
	})
}

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
