// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe/tpcapture"
	"github.com/cohort-dist/cohort/rpc/py"
)

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/wire/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDocumentedTypes(t *testing.T) {
	rows := tpcapture.Table(document(t, "tensorpipe.md"), "RPC messages (checked)")
	if len(rows) != len(typeNames) {
		t.Errorf("%d types are documented of %d", len(rows), len(typeNames))
	}
	for _, row := range rows {
		n, err := strconv.ParseUint(row[1], 0, 16)
		if err != nil || Type(n).String() != row[0] {
			t.Errorf("%v: the codec says %v", row, Type(n))
		}
	}
}

// TestDocumentedValues compares the pickles of the document with what the encoder writes and the decoder reads.
func TestDocumentedValues(t *testing.T) {
	values := map[string]any{
		"None": nil, "True": true, "-1": int64(-1), "2**40": int64(1) << 40, "2.5": 2.5, `"é"`: "é", `b"\x00\xff"`: []byte{0, 255},
		"[1, (2,)]": []any{int64(1), py.Tuple{int64(2)}}, `{"a": None}`: &py.Dict{Pairs: []py.Pair{{Key: "a", Value: nil}}},
		"{1}": py.Set{int64(1)},
	}
	rows := tpcapture.Table(document(t, "pickle.md"), "Values (checked)")
	if len(rows) != len(values) {
		t.Fatalf("%d values are documented of %d", len(rows), len(values))
	}
	for _, row := range rows {
		v, ok := values[strings.Trim(row[0], "`")]
		want, err := hex.DecodeString(strings.NewReplacer("`", "", " ", "").Replace(row[1]))
		if !ok || err != nil {
			t.Fatalf("%v: %v", row, err)
		}
		got, err := (&Encoder{}).Pickle(v)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is %x, %v", row[0], got, err)
		}
		if back, err := (&Decoder{}).Unpickle(want); err != nil || text(back) != text(v) {
			t.Errorf("%s reads as %s, %v", row[0], text(back), err)
		}
	}
}

// TestDocumentedHeader checks the offsets of the cohort header by setting one field at a time.
func TestDocumentedHeader(t *testing.T) {
	frames := map[string]*cohortwire.Frame{
		"type": {Type: 0xffff}, "flags": {Flags: 0xff}, "id": {ID: 1<<64 - 1}, "incarnation of the sender": {Incarnation: 1<<64 - 1},
		"deadline: nanoseconds left, 0 for none": {Deadline: 1<<63 - 1},
	}
	zero := (&cohortwire.Frame{}).AppendHead(nil)
	rows := tpcapture.Table(document(t, "tensorpipe.md"), "The cohort transport (checked)")
	next := 0
	for _, row := range rows {
		offset, err1 := strconv.Atoi(row[0])
		size, err2 := strconv.Atoi(row[1])
		if err1 != nil || err2 != nil || offset != next {
			t.Fatalf("%v does not follow byte %d", row, next)
		}
		next = offset + size
		f := frames[row[2]]
		if f == nil {
			continue
		}
		delete(frames, row[2])
		for i, b := range f.AppendHead(nil)[:cohortwire.HeaderSize] {
			if inside := i >= offset && i < next; inside != (b != zero[i]) {
				t.Errorf("%v: byte %d is %#x", row, i, b)
			}
		}
	}
	if next != cohortwire.HeaderSize || len(frames) > 0 {
		t.Errorf("the table ends at byte %d and lacks %d fields", next, len(frames))
	}
	if zero[7] != 0xc7 {
		t.Errorf("byte 7 is %#x", zero[7])
	}
}
