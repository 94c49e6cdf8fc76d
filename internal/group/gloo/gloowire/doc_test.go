// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloowire

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
)

// docTables reads the tables of docs/wire/gloo.md that have a name.
func docTables(t *testing.T) map[string][][]string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/wire/gloo.md")
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string][][]string{}
	name := ""
	for line := range strings.SplitSeq(string(text), "\n") {
		if n, ok := strings.CutPrefix(line, "table: "); ok {
			name = n
			continue
		}
		if !strings.HasPrefix(line, "|") {
			if strings.TrimSpace(line) != "" {
				name = ""
			}
			continue
		}
		if name == "" || strings.HasPrefix(line, "|---") {
			continue
		}
		var row []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		tables[name] = append(tables[name], row)
	}
	return tables
}

// TestDocumentedLayouts checks the document's byte tables against the encoders: every example must stand at its offset,
// and no byte outside of the tables may be set.
func TestDocumentedLayouts(t *testing.T) {
	tables := docTables(t)
	v4 := Address{netip.MustParseAddrPort("127.0.0.1:8080"), NoSequence}
	frame := func(f Frame) []byte {
		b := make([]byte, HeaderSize)
		f.Put(b)
		return b
	}
	for name, encoded := range map[string][]byte{
		"address-v4":       v4.Append(nil),
		"address-v6":       Address{netip.MustParseAddrPort("[::1]:8080"), NoSequence}.Append(nil),
		"record-rank":      Record{Generation: C, Host: "vm", Addrs: []Address{v4}, IDs: []int64{0, 1}}.Append(nil),
		"preamble":         AppendPreamble(nil, 5),
		"frame-data":       frame(Frame{Data, Slot(AllReduce, 1), 4}),
		"frame-send-ready": frame(Frame{SendReady, 5, 20}),
		"frame-recv-ready": frame(Frame{RecvReady, Slot(Barrier, 8), 0}),
	} {
		rows := tables[name]
		if len(rows) < 2 {
			t.Errorf("%s: no such table in the document", name)
			continue
		}
		covered := make([]bool, len(encoded))
		for _, row := range rows[1:] {
			off, err1 := strconv.Atoi(row[0])
			size, err2 := strconv.Atoi(row[1])
			if err1 != nil || err2 != nil || off+size > len(encoded) {
				t.Errorf("%s: bad row %v for %d bytes", name, row, len(encoded))
				continue
			}
			for i := off; i < off+size; i++ {
				if covered[i] {
					t.Errorf("%s: byte %d is described twice", name, i)
				}
				covered[i] = true
			}
			if got := hex.EncodeToString(encoded[off : off+size]); row[3] != "" && row[3] != got {
				t.Errorf("%s: %s: the document says %s, the encoder writes %s", name, row[2], row[3], got)
			}
		}
		for i, b := range encoded {
			if !covered[i] && b != 0 {
				t.Errorf("%s: byte %d is %#x and not in the document", name, i, b)
			}
		}
	}
	if rows := tables["slots"]; len(rows) != 9 {
		t.Errorf("%d rows of slots", len(rows))
	} else {
		for _, row := range rows[1:] {
			kind, _ := strconv.Atoi(row[0])
			if got := fmt.Sprintf("%#016x", Slot(SlotKind(kind), 1)); got != row[2] {
				t.Errorf("%s: the document says %s, the code %s", row[1], row[2], got)
			}
		}
	}
}
