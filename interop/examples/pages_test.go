// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

var fence = regexp.MustCompile("(?s)```([a-z]+)\n(.*?)```")

// TestMixedGroupPage does what docs/mixed-group.md tells a reader to do, word for word but for the port.
func TestMixedGroupPage(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "mixed-group.md"))
	if err != nil {
		t.Fatal(err)
	}
	pieces := map[string]string{}
	for _, m := range fence.FindAllSubmatch(page, -1) {
		pieces[string(m[1])] = string(m[2])
	}
	torchtest.V113.Need(t) // the one that a plain python3 is
	dir := t.TempDir()
	for name, text := range map[string]string{"average.py": pieces["python"], "main.go": pieces["go"]} {
		if err = os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "average")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, filepath.Join(dir, "main.go"))
	build.Dir = root
	if out, failed := build.CombinedOutput(); failed != nil {
		t.Fatalf("%v\n%s", failed, out)
	}
	out := paste(t, dir, pieces["sh"], "go run main.go", program, "python3", strings.Join(torchtest.V113.Command(), " "))
	for _, want := range []string{
		"PyTorch rank 0 has [1.0, 1.0, 1.0, 1.0]", "PyTorch rank 1 has [1.0, 1.0, 1.0, 1.0]",
		"Go rank 2 has [1 1 1 1]",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}
