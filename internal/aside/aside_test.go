// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package aside

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"testing"
)

func TestCall(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	called := 0
	Call(logger, func() { called++ })
	Call(logger, func() { called++; runtime.Goexit() })
	if called != 2 || log.Len() > 0 {
		t.Errorf("%d calls, log: %s", called, &log)
	}
	Call(logger, func() { panic("a bug") })
	if text := log.String(); !strings.Contains(text, "a bug") || !strings.Contains(text, "TestCall") {
		t.Errorf("log: %s", text)
	}
}
