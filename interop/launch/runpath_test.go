// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// wrapper returns a program that starts the Python of a version.
func wrapper(t *testing.T, torch *torchtest.Torch) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "python")
	text := "#!/bin/sh\nexec " + strings.Join(torch.Command(), " ") + " \"$@\"\n"
	if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestRunPath: a script of --run-path sees the same under both launchers.
func TestRunPath(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		script := []string{"--run-path", dir + "/runpath.py", "--lr", "1", "${local_rank}"}
		var ours, theirs bytes.Buffer
		_ = runInto(t, dir, exec.Command(program(t), append([]string{
			"run", "--evidence", "-", "--nproc-per-node", "2", "--python", wrapper(t, torch),
		}, script...)...), &ours)
		script[0] = "--run_path" // 1.13 has no other spelling
		cmd, path := withTorchrun(t, torch, dir, append([]string{"-r", "0"}, script...)...)
		_ = runInto(t, dir, cmd, &theirs, path)
		ourLines, theirLines := said(&ours), said(&theirs)
		if len(ourLines) != 2 || !slices.Equal(ourLines, theirLines) {
			t.Errorf("cohort run: %q\ntorchrun:   %q", ourLines, theirLines)
		}
	})
}

// said returns the lines of a script, without what a library prints, in the order of the ranks.
func said(r io.Reader) []string {
	text, _ := io.ReadAll(r)
	var all []string
	for line := range strings.Lines(string(text)) {
		if _, after, found := strings.Cut(line, "said "); found {
			all = append(all, strings.TrimSpace(after))
		}
	}
	slices.Sort(all)
	return all
}
