// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
)

func TestHook(t *testing.T) {
	var events []string
	s := open(t, tempPath(t), WithHook(func(e observe.Event) {
		line := string(e.Kind) + " " + e.Phase.String() + " " + e.Key
		if e.Err != nil {
			line += " " + e.Err.Error()
		}
		events = append(events, line)
	}))
	_ = s.Set(t.Context(), "k", []byte("text"))
	_, _ = s.Get(t.Context(), "k")
	_, _ = s.Add(t.Context(), "k", 1)
	_, _ = s.Check(t.Context(), "k")
	_ = s.Close()
	want := []string{
		"store.open begin ", "store.open end ", "store.set begin k", "store.set end k", "store.get begin k", "store.get end k",
		"store.add begin k", `store.add end k filestore: add "k": not a number: the value does not begin with a decimal number: "text"`,
		"store.check begin k", "store.check end k", "store.close begin ", "store.close end ",
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLogger(t *testing.T) {
	var log bytes.Buffer
	path := tempPath(t)
	s := open(t, path, WithLogger(slog.New(slog.NewTextHandler(&log, nil))), WithLogger(nil))
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString("\x02\x00\x00\x00/")
	_ = f.Close()
	if err := s.Set(t.Context(), "k", nil); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "cutting it off") || !strings.Contains(log.String(), "bytes=5") {
		t.Errorf("log: %s", &log)
	}
	_ = os.Remove(path)
	if err := s.Set(t.Context(), "k", nil); !errors.Is(err, cohort.Replaced) {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "removed or replaced") {
		t.Errorf("log: %s", &log)
	}
}
