// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// TestCutClientsShareLines: thousands that are cut at once leave a few lines and a number.
func TestCutClientsShareLines(t *testing.T) {
	var text bytes.Buffer
	r := newReporter(slog.New(slog.NewTextHandler(&text, nil)))
	for i := range 12_000 {
		r.warn("client cut", "protocol error", slog.Int("peer", i))
	}
	r.warn("client cut", "limit reached", slog.Int("peer", 1))
	r.end()
	lines := strings.Count(text.String(), "\n")
	if lines > sameMost+2 || !strings.Contains(text.String(), fmt.Sprint("lines_left_out=", 12_000-sameMost)) ||
		!strings.Contains(text.String(), "client cut: protocol error") {
		t.Errorf("%d lines:\n%s", lines, text.String())
	}
}
