// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package datatest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type ship struct {
	Name   string
	Speed  time.Duration
	Afloat bool
	Decks  []int
	Crew   *crew
	Cargo  map[string]int
	Boats  []boat
	Ports  []string
}

type crew struct{ Size int }

type boat struct {
	Number int
	Colour string
	Oars   []string
}

// TestRun: the outputs of a file are those of the inputs.
func TestRun(t *testing.T) {
	Run(t, "ships.txt", func(t *testing.T, input string) string {
		t.Helper()
		var s ship
		Read(t, input, &s, map[string]Line{"oars": func(parent any, rest string) error {
			parent.(*boat).Oars = append(parent.(*boat).Oars, rest) //nolint:errcheck,forcetypeassert // of a test
			return nil
		}})
		if s.Crew == nil {
			return fmt.Sprintf("%+v", s)
		}
		size := s.Crew.Size
		s.Crew = nil
		return fmt.Sprintf("%+v\ncrew of %d", s, size)
	})
}

// TestFormat: a file that is written is the file that was read.
func TestFormat(t *testing.T) {
	t.Parallel()
	const text = "About.\n\n=== one\nin\n\nmore\n----\nout\n\n=== two\n----\nnothing in\n"
	about, cases := parse(text)
	if got := format(about, cases); got != text {
		t.Error(cmp.Diff(text, got))
	}
}
