// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe/tpcapture"
)

// TestDocumentedHello compares the table of docs/wire/tensorpipe.md with the frames.
func TestDocumentedHello(t *testing.T) {
	text, err := os.ReadFile("../../../docs/wire/tensorpipe.md")
	if err != nil {
		t.Fatal(err)
	}
	id := Identity{"worker", 0x0102, 7}
	n := nonce{9: 1, 15: 2}
	hello := id.frame(n).Payload
	sum := proof{of: id, to: id}.sum([]byte("secret"))
	want := map[string][]byte{
		"worker id": {2, 1}, "nonce, fresh for every connection": n[:], "name": []byte("worker"), "HMAC-SHA256, or nothing": sum,
	}
	rows := tpcapture.Table(string(text), "Hello and proof (checked)")
	if len(rows) != len(want) {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		frame := map[string][]byte{"hello": hello, "proof": sum}[row[0]]
		offset, err := strconv.Atoi(row[1])
		if err != nil {
			t.Fatal(err)
		}
		size := len(frame) - offset
		if first, _, ranged := strings.Cut(row[2], " to "); !ranged {
			if size, err = strconv.Atoi(first); err != nil {
				t.Fatal(err)
			}
		}
		if got := frame[offset : offset+size]; !bytes.Equal(got, want[row[3]]) {
			t.Errorf("%s of the %s: %x, want %x", row[3], row[0], got, want[row[3]])
		}
	}
}
