// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package selfexe_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cohort-dist/cohort/internal/sys/selfexe"
)

// The test starts itself as a program whose file is changed while it runs.
const role = "SELFEXE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "second":
		fmt.Println("the same")
	default:
		if err := first(os.Getenv(role)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
}

// first removes or replaces its own file, and starts itself again.
func first(what string) error {
	name, err := os.Executable()
	if err != nil {
		return err
	}
	if what != "leave" {
		if err = os.Remove(name); err != nil {
			return err
		}
	}
	if what == "replace" {
		if err = os.WriteFile(name, []byte("#!/bin/sh\necho another\n"), 0o755); err != nil {
			return err
		}
	}
	path, err := selfexe.Path()
	if err != nil {
		return err
	}
	if what == "leave" && path != name {
		return fmt.Errorf("the path is %s, not %s", path, name)
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), role+"=second")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// TestPath: a program starts itself, whatever was done to its file.
func TestPath(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"leave", "remove", "replace"} {
		copied := filepath.Join(t.TempDir(), "program")
		if err = os.WriteFile(copied, binary, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), copied)
		cmd.Env = append(os.Environ(), role+"="+what)
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "the same\n" {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
	}
}
