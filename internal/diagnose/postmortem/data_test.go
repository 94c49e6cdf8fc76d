// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package postmortem

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/datatest"
)

// TestCauses: the end of a worker, and why it ended, where in the program, and what to try.
func TestCauses(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"causes", "output", "gpu", "advice", "refusals"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			datatest.Run(t, file+".txt", func(t *testing.T, input string) string {
				t.Helper()
				return causeOf(t, readDeath(t, input))
			})
		})
	}
}

func causeOf(t *testing.T, d Death) string {
	t.Helper()
	c := Explain(d)
	if strings.Contains(c.Words, "INFO") || strings.Contains(c.Traceback, "WARNING") {
		t.Errorf("a message of a log: %s, in %s", c.Words, c.Traceback)
	}
	text := c.Kind.String() + ": " + c.Words
	if c.Where != "" {
		text += "\nat " + c.Where
	}
	if c.Advice != "" {
		text += "\ntry: " + c.Advice
	}
	return text
}

// readDeath reads the end of a worker in the form of [datatest.Read]. Lines that begin with "|" are what it has printed; the last one ends
// without a newline if it begins with "|-". A line "errorfile" is the file that @record has written.
func readDeath(t *testing.T, input string) Death {
	t.Helper()
	var d Death
	datatest.Read(t, input, &d, map[string]datatest.Line{
		"|":         func(_ any, rest string) error { d.Stderr += rest + "\n"; return nil },
		"|-":        func(_ any, rest string) error { d.Stderr += rest; return nil },
		"errorfile": func(_ any, rest string) error { d.ErrorFile = fmt.Append(nil, rest); return nil },
	})
	return d
}
