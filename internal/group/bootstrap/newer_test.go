// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// TestNewerIsSaidOnce: a version that is newer than any that is known is worth one line in the log of a process, not one per
// group.
func TestNewerIsSaidOnce(t *testing.T) {
	version := "torch-3." + strconv.Itoa(rand.IntN(1_000_000_000))
	var log bytes.Buffer
	for range 3 { // three groups
		warnNewer(slog.New(slog.NewTextHandler(&log, nil)), version)
	}
	if n := strings.Count(log.String(), version); n != 1 {
		t.Errorf("it was said %d times:\n%s", n, log.String())
	}
}
