// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package aside

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/observe"
)

// TestNoLogger: without a logger a panic is not lost.
func TestNoLogger(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	Hook(nil, func(observe.Event) { panic("a bug") }).Emit(observe.Event{})
	if text := log.String(); !strings.Contains(text, "a bug") {
		t.Errorf("log: %s", text)
	}
	if Hook(nil, nil) != nil {
		t.Error("no hook has become one")
	}
}

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
