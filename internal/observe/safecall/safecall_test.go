// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package safecall

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
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

// TestLogger: a handler of logs that panics or ends its goroutine does not end who logs; its panic is reported elsewhere.
func TestLogger(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	for _, end := range []func(){func() { panic("a bug") }, runtime.Goexit} {
		l := Logger(testkit.BadLogger(end))
		if Logger(l) != l {
			t.Error("what is protected is protected again")
		}
		l.Info("a line")
		l.With(slog.Int("a", 1)).WithGroup("g").Info("a line")
	}
	if n := strings.Count(log.String(), "a bug"); n != 2 {
		t.Errorf("%d panics are told: %s", n, &log)
	}
	slog.SetDefault(testkit.BadLogger(func() { panic("the default logger's") }))
	Logger(testkit.BadLogger(func() { panic("a bug") })).Info("a line") // only the standard error is left
	Logger(nil).Info("a line")
}

// stubborn is a handler that cannot be given attributes or a group.
type stubborn struct {
	slog.Handler
	end func()
}

func (s stubborn) WithAttrs([]slog.Attr) slog.Handler { s.end(); return nil }
func (s stubborn) WithGroup(string) slog.Handler      { s.end(); return nil }

// TestLoggerWith: what cannot be added is left out, and the lines are written.
func TestLoggerWith(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	for how, end := range map[string]func(){"panic": func() { panic("a bug") }, "exit": runtime.Goexit, "nothing": func() {}} {
		var log bytes.Buffer
		Logger(slog.New(stubborn{slog.NewTextHandler(&log, nil), end})).With(slog.Int("a", 1)).WithGroup("g").Info("a line")
		if !strings.Contains(log.String(), "a line") {
			t.Errorf("%s: %q", how, &log)
		}
	}
}

func TestGet(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	if v, err := Get(nil, "test", func() (int, error) { return 7, nil }); v != 7 || err != nil {
		t.Errorf("%d, %v", v, err)
	}
	double := Func(slog.New(slog.NewTextHandler(&log, nil)), "test", func(n int) (int, error) {
		switch n {
		case 0:
			runtime.Goexit()
		case 1:
			panic("a bug")
		}
		return 2 * n, nil
	})
	if v, err := double(2); v != 4 || err != nil {
		t.Errorf("%d, %v", v, err)
	}
	if _, err := double(0); cohort.CodeOf(err) != cohort.Internal {
		t.Errorf("a function that does not return: %v", err)
	}
	if log.Len() > 0 {
		t.Errorf("log: %s", &log)
	}
	if _, err := double(1); cohort.CodeOf(err) != cohort.Internal || !strings.Contains(err.Error(), "a bug") ||
		!strings.Contains(log.String(), "a bug") {
		t.Errorf("a function that panics: %v, log: %s", err, &log)
	}
	if Func[int, int](nil, "test", nil) != nil {
		t.Error("no function has become one")
	}
}
