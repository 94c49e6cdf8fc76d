// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestEmit(t *testing.T) {
	t.Parallel()
	var none Hook
	none.Emit(Event{Kind: "x"}) // must not panic
	var got []Event
	record := Hook(func(e Event) { got = append(got, e) })
	if Tee(nil, nil) != nil {
		t.Error("a tee of nothing must be no hook, so that its cost is one branch")
	}
	Tee(record, nil, record).Emit(Event{Kind: "store.wait", Phase: Begin})
	if len(got) != 2 || got[0].Time.IsZero() || got[0].Kind != "store.wait" {
		t.Errorf("got %+v", got)
	}
}

func TestLogLevels(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	hook := Log(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	hook.Emit(Event{Kind: "store.set", Rank: 2, Key: "k", Bytes: 5, Dur: 7})
	hook.Emit(Event{Kind: "store.set", Rank: -1, Err: errors.New("boom")})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "level=DEBUG") || !strings.Contains(lines[0], "rank=2") ||
		!strings.Contains(lines[0], "key=k") {
		t.Errorf("got %q", lines)
	}
	if !strings.Contains(lines[1], "level=WARN") || !strings.Contains(lines[1], "err=boom") || strings.Contains(lines[1], "rank=") {
		t.Errorf("got %q", lines)
	}
}

func TestSplitTrace(t *testing.T) {
	t.Parallel()
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for _, good := range []string{
		"00-" + trace + "-" + span + "-01", "00-" + trace + "-" + span + "-00",
		"cc-" + trace + "-" + span + "-01-later",
	} {
		if a, b := SplitTrace(good); a != trace || b != span {
			t.Errorf("%s is read as %q, %q", good, a, b)
		}
	}
	for _, bad := range []string{
		"", "00", "-", "00-" + trace + "-" + span, "ff-" + trace + "-" + span + "-01", "00-" + trace + "-" + span + "-01-more",
		"00-" + strings.ToUpper(trace) + "-" + span + "-01", "00-" + strings.Repeat("0", 32) + "-" + span + "-01",
		"00-" + trace + "-" + strings.Repeat("0", 16) + "-01", "00-" + trace[1:] + "-" + span + "-01", "00-" + trace + "-" + span + "-1",
	} {
		if a, b := SplitTrace(bad); a != "" || b != "" {
			t.Errorf("%q is read as %q, %q", bad, a, b)
		}
	}
}

func ExampleHook() {
	hook := Hook(func(e Event) { fmt.Println(e.Kind, e.Phase, e.Key) })
	hook.Emit(Event{Kind: "store.wait", Phase: Begin, Key: "init/rank3"})
	// Output: store.wait begin init/rank3
}
