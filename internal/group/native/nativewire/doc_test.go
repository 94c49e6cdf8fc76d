// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativewire

import (
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// docTable returns the cells of a table of docs/wire/native.md, without its heading.
func docTable(t *testing.T, name string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/wire/native.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\ntable: "+name+"\n\n")
	if !found {
		t.Fatalf("no table %s in the document", name)
	}
	table, _, _ := strings.Cut(rest, "\n\n")
	for line := range strings.Lines(table) {
		var row []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|\n"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		rows = append(rows, row)
	}
	return rows[2:]
}

// TestDocumentedLayouts: the rows of a table follow each other without a gap, and the examples are what the encoders write.
func TestDocumentedLayouts(t *testing.T) {
	hello := Hello{Version: Version, From: 3, To: 1, Size: 4, Window: 256 << 10, Lanes: 2}
	for i := range hello.Group {
		hello.Group[i] = byte(i + 1)
	}
	greeting := make([]byte, HelloSize)
	hello.Put(greeting)
	frame := func(h Header) []byte {
		b := make([]byte, HeaderSize)
		h.Put(b)
		return b
	}
	x, err := tensor.New(tensor.Float32, 3)
	if err != nil {
		t.Fatal(err)
	}
	out, err := x.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	call := CallOf(&collective.Request{
		Kind: collective.AllReduce, Op: reduce.Sum, DType: tensor.Float32, Out: out,
		Shape: collective.ShapeOf(x),
	})
	for name, encoded := range map[string][]byte{
		"hello": greeting,
		"frame-data": frame(Header{
			Type: Data, Flags: More, Core: 3, Length: 1 << 20, Credit: 512, Slot: CollectiveSlot(5),
			Total: 5 << 20,
		}),
		"frame-called": frame(Header{Type: Eager, Flags: Called, Length: 12, Slot: CollectiveSlot(5), Call: call}),
	} {
		at := 0
		for _, row := range docTable(t, name) {
			size, err := strconv.Atoi(row[1])
			if err != nil || row[0] != strconv.Itoa(at) || at+size > len(encoded) {
				t.Fatalf("%s: %q does not follow what stands before it, which ends at %d of %d", name, row, at, len(encoded))
			}
			if got := hex.EncodeToString(encoded[at : at+size]); got != row[3] {
				t.Errorf("%s: %s is %s, not %s", name, row[2], got, row[3])
			}
			at += size
		}
		if at != len(encoded) {
			t.Errorf("%s: the table ends at %d of %d bytes", name, at, len(encoded))
		}
	}
}

// TestDocumentedTypes: the table has every type of frame that is understood.
func TestDocumentedTypes(t *testing.T) {
	rows := docTable(t, "types")
	for b := range 256 {
		_, err := Parse(append([]byte{byte(b)}, make([]byte, HeaderSize-1)...))
		listed := b >= 1 && b <= len(rows) && rows[b-1][0] == strconv.Itoa(b)
		if (err == nil) != listed {
			t.Errorf("type %d: understood %v, in the table %v", b, err == nil, listed)
		}
	}
}
