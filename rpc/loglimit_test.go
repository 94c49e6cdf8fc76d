// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Peers that cause lines of the same text fill no log; other texts are written, and later it logs how many are missing.
func TestLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		logger := slog.New(limitLog(slog.NewTextHandler(&out, nil)))
		for range 12_000 {
			logger.With(slog.String("peer", "w1")).Warn("control frame dropped")
		}
		logger.Warn("something else")
		if n := strings.Count(out.String(), "control frame dropped"); n != logLines {
			t.Errorf("%d lines of the same text", n)
		}
		if !strings.Contains(out.String(), "something else") {
			t.Error("another text was left out")
		}
		time.Sleep(logWindow)
		logger.Warn("control frame dropped")
		if !strings.Contains(out.String(), "left_out=11900") {
			t.Error("the number of missing lines is not logged")
		}
	})
}
