// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe/tpcapture"
)

// TestDocumentedHandshake reads the byte table of docs/wire/tensorpipe.md: each frame must be one that PyTorch sent, and
// our codec must read it and write the same bytes.
func TestDocumentedHandshake(t *testing.T) {
	text, err := os.ReadFile("../../../docs/wire/tensorpipe.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := tpcapture.Table(string(text), "Handshake frames (checked)")
	if len(rows) != 6 {
		t.Fatalf("%d rows", len(rows))
	}
	notes := map[string]string{"packet": "Packet", "brochure": "Brochure ", "answer": "BrochureAnswer", "descriptor": "Descriptor"}
	for _, row := range rows {
		data, err := hex.DecodeString(strings.Trim(row[1], "`"))
		if err != nil {
			t.Fatalf("%s: %v", row[0], err)
		}
		kind, _, _ := strings.Cut(row[0], ",")
		got, err := recode(notes[kind], data)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %x, %v", row[0], got, err)
		}
		found := false
		for _, f := range captured(t) {
			found = found || strings.HasPrefix(f.Note, strings.TrimSpace(notes[kind])) && bytes.Equal(f.Data, data)
		}
		if !found {
			t.Errorf("%s: PyTorch never sent these bytes", row[0])
		}
	}
}
