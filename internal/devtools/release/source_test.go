// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestOneVersion: what has to repeat the version repeats it.
func TestOneVersion(t *testing.T) {
	t.Parallel()
	src, err := readSource(t.Context(), repository)
	if err != nil {
		t.Fatal(err)
	}
	modules, err := src.modules()
	if err != nil || len(modules) < 2 {
		t.Fatalf("modules %v, %v", modules, err)
	}
	if err = src.ready(modules); err != nil && !strings.Contains(err.Error(), "not yet tagged") {
		t.Error(err)
	}
	src.version = "9.9.9"
	if src.ready(modules) == nil {
		t.Error("another version is ready too")
	}
}

// TestRecord: a source distribution says what git said.
func TestRecord(t *testing.T) {
	t.Parallel()
	src := source{version: "1.2.3", commit: "abc-dirty", when: time.Unix(1795073044, 0).UTC()}
	if got, err := (source{version: "1.2.3"}).fromRecord(src.record()); err != nil || got != src {
		t.Errorf("%+v, %v", got, err)
	}
	for _, damaged := range []string{"", "commit a b\ntime 1\n", "commit a\ntime x\n", "commit a\ntime 99999999999999999999\n"} {
		if _, err := src.fromRecord([]byte(damaged)); err == nil {
			t.Errorf("%q is accepted", damaged)
		}
	}
}

// TestTag: every module gets its tag, once, and only on a commit that is ready.
func TestTag(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	write := func(name, text string) {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git here")
	}
	git("init", "-q")
	git("config", "user.name", "test")
	git("config", "user.email", "test@example.org")
	write(versionFile, "__version__ = \"1.2.3\"\n")
	write("go.work", "go 1.26.0\n\nuse (\n\t.\n\t./sub\n)\n")
	write("go.mod", "module x\n")
	write("sub/go.mod", "require "+module+" v1.2.3\n")
	write("CHANGELOG.md", "# Changelog\n\n## 1.2.3 (not yet tagged)\n")
	git("add", "-A")
	git("commit", "-q", "-m", "one")
	tag := func() error {
		src, err := readSource(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return src.tag(t.Context())
	}
	refused := func(why string) {
		t.Helper()
		if err := tag(); err == nil || !strings.Contains(err.Error(), why) || git("tag") != "" {
			t.Errorf("%v, not %q; tags %q", err, why, git("tag"))
		}
	}
	refused("not yet tagged")
	write("CHANGELOG.md", "# Changelog\n\n## 1.2.3 (a day)\n")
	refused("not committed")
	git("commit", "-q", "-a", "-m", "two")
	for range 2 {
		if err := tag(); err != nil || git("tag") != "sub/v1.2.3\nv1.2.3\n" {
			t.Errorf("%v; tags %q", err, git("tag"))
		}
	}
	write("more", "")
	git("add", "-A")
	git("commit", "-q", "-m", "three")
	if err := tag(); err == nil || !strings.Contains(err.Error(), "not the commit") {
		t.Errorf("the tag of another commit: %v", err)
	}
}
