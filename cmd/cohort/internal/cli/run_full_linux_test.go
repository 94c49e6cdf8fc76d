// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestReportOnAFullDisk: a report that cannot be written whole is not there, the command says so, and its exit code is the job's.
func TestReportOnAFullDisk(t *testing.T) {
	dir := testkit.SmallDisk(t)
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 100_000), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	file := filepath.Join(dir, "report.json")
	for program, want := range map[string]int{"true": command.ExitOK, "false": command.ExitFailure} {
		code, out := runJob(file, program)
		if code != want || !strings.Contains(out, "cohort: --report: write "+file+": no space left on device\n") {
			t.Errorf("%s: exit code %d\n%s", program, code, out)
		}
		if info, err := os.Lstat(file); err == nil {
			t.Errorf("%s: a file of %d bytes is left", program, info.Size())
		}
	}
}

// TestReportThatIsNoFile: what is not a file is neither removed, nor does it change the exit code.
func TestReportThatIsNoFile(t *testing.T) {
	link := filepath.Join(t.TempDir(), "full")
	if err := os.Symlink("/dev/full", link); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{link: "no space left on device", filepath.Join(link, "report.json"): "not a directory"} {
		if code, out := runJob(name, "true"); code != command.ExitOK || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d\n%s", name, code, out)
		}
	}
	if _, err := os.Lstat(link); err != nil {
		t.Error(err)
	}
}

// runJob runs a job with a report and returns its exit code and what it has said.
func runJob(report, program string) (int, string) {
	var out bytes.Buffer
	code := Main([]string{runName, "--evidence", "-", "--report", report, program},
		IO{In: strings.NewReader(""), Out: &out, Err: &out, Getenv: func(string) string { return "" }})
	return code, out.String()
}
