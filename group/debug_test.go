// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
	"github.com/cohort-dist/cohort/store"
)

// TestDumpDirVariable: with COHORT_DUMP_DIR and no code, ranks can be asked where they stand, and a group that fails
// leaves a dump.
func TestDumpDirVariable(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(controlsock.EnvDump, dir)
	ctx := ctxOf(t)
	groups := newWorld(t, 2, WithTransport(TCP))
	late := groups[0].Barrier(ctx)
	folder := filepath.Join(dir, "control")
	answers := controlsock.Ask(ctx, folder, controlsock.Prefix(os.Getpid()), "trace")
	if len(answers) != 2 {
		t.Fatalf("%d ranks answer", len(answers))
	}
	var dumps []flightrec.Dump
	for _, b := range answers {
		d, err := flightrec.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		dumps = append(dumps, d)
	}
	if s := flightrec.Analyze(dumps).Sentence; !strings.Contains(s, "rank 1 never entered #0") {
		t.Errorf("the verdict is %q", s)
	}
	stacks := controlsock.Ask(ctx, folder, controlsock.Prefix(os.Getpid()), "stacks")
	if len(stacks) != 2 {
		t.Errorf("%d ranks tell their stacks", len(stacks))
	}
	for _, b := range stacks {
		if !strings.Contains(string(b), "TestDumpDirVariable") {
			t.Errorf("the stacks are\n%s", b)
		}
	}
	_ = groups[1].Close()
	if late.Wait(ctx) == nil {
		t.Error("the barrier of one rank is complete")
	}
	_ = groups[0].Close()
	if files, _ := filepath.Glob(filepath.Join(dir, "group-*.json")); len(files) == 0 {
		t.Error("no dump was left")
	}
	if left, _ := os.ReadDir(folder); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// TestDebugLevel: PyTorch's variable is read as PyTorch reads it, and a value that PyTorch refuses is refused.
func TestDebugLevel(t *testing.T) {
	for value, detail := range map[string]bool{
		"": false, "OFF": false, "off": false, "oFf": false, "INFO": false, "info": false, "INfO": false,
		"DETAIL": true, "detail": true, "DeTaIl": true,
	} {
		t.Setenv(collective.DebugVariable, value)
		c := newConfig(nil)
		if err := c.check("test"); err != nil || c.Detail != detail {
			t.Errorf("%q: detail %v, %v", value, c.Detail, err)
		}
	}
	for _, value := range []string{"foo", "0", "1", "-1", "DETIAL"} {
		t.Setenv(collective.DebugVariable, value)
		s := store.NewMemory()
		g, err := New(context.Background(), s, 0, 1)
		if g != nil || !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), collective.DebugVariable) ||
			!strings.Contains(err.Error(), "OFF, INFO or DETAIL") {
			t.Errorf("%q: %v", value, err)
		}
		_ = s.Close()
	}
}
