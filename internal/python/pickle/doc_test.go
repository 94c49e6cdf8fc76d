// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// TestDocumentedOpcodes compares the table of docs/wire/pickle.md with what the TorchScript reader takes.
func TestDocumentedOpcodes(t *testing.T) {
	text, err := os.ReadFile("../../../docs/wire/pickle.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[byte]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (0x[0-9a-f]{2}) \| ([A-Z0-9_]+) \|$`).FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseUint(m[1], 0, 8)
		if err != nil {
			t.Fatal(err)
		}
		documented[byte(n)] = true
		if !jitOpcodes[n] {
			t.Errorf("%s (%s) is documented, but not read", m[2], m[1])
		}
	}
	for op, taken := range jitOpcodes {
		if taken && !documented[byte(op)] {
			t.Errorf("%#x is read, but not documented", op)
		}
	}
}
