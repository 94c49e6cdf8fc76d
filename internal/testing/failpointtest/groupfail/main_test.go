// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupfail

import (
	"log/slog"
	"os"
	"testing"
)

// TestMain is a rank when a test started this program again, see process_test.go.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the panics of callbacks are meant
	if spec := os.Getenv(rankEnv); spec != "" {
		os.Exit(rankMain(spec))
	}
	os.Exit(m.Run())
}
