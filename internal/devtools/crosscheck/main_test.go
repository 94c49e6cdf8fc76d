// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheck: each mistake is found on the platform that has it, and on no other.
func TestCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		files map[string]string
		tests bool
		bad   string // the platform
		want  string
	}{
		{
			"types",
			map[string]string{"a.go": "package a\n", "a_windows.go": "package a\n\nfunc f() int { return \"\" }\n"},
			false,
			"windows/amd64", "a_windows.go:3:23: cannot use",
		},
		{"small words", map[string]string{"a.go": "package a\n\nconst big int = 1 << 40\n"}, false, "linux/386", "overflows"},
		{
			"other systems",
			map[string]string{"a.go": "package a\n\nimport \"syscall\"\n\nvar _ = syscall.Kill\n"},
			false,
			"windows/amd64", "undefined: syscall.Kill",
		},
		{
			"no body",
			map[string]string{"a.go": "package a\n", "a_arm64.go": "package a\n\nfunc f()\n"},
			false, "linux/arm64",
			"f has no body",
		},
		{
			"no body, but assembly",
			map[string]string{"a.go": "package a\n\nfunc f()\n", "a.s": "TEXT ·f(SB), 4, $0\n\tRET\n"},
			false, "", "",
		},
		{
			"no file",
			map[string]string{"a.go": "package a\n\nimport _ \"a/b\"\n", "b/b_linux.go": "package b\n"},
			false,
			"windows/amd64", "go list",
		},
		{
			"tests",
			map[string]string{"a.go": "package a\n", "a_windows_test.go": "package a\n\nvar _ = nothing\n"},
			true,
			"windows/amd64", "undefined: nothing",
		},
		{"tests from outside", map[string]string{
			"a.go": "package a\n", "export_test.go": "package a\n\nconst Y = 1\n", "b/b_linux_test.go": "package b\n",
			"a_test.go": "package a_test\n\nimport \"a\"\n\nvar _ [a.Y]int\n",
		}, true, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c.files["go.mod"] = "module a\n\ngo 1.26\n"
			for name, text := range c.files {
				name = filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, platform := range []string{"linux/386", "linux/arm64", "windows/amd64"} {
				n, err := check(dir, platform, c.tests, []string{"./..."})
				if platform == c.bad && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%s: %v, want %s", platform, err, c.want)
				}
				if platform != c.bad && (err != nil || n == 0) {
					t.Errorf("%s: %d packages, %v", platform, n, err)
				}
			}
		})
	}
	for _, platform := range []string{"", "linux", "linux/abacus"} {
		if _, err := check(".", platform, false, nil); err == nil {
			t.Errorf("%q is a platform", platform)
		}
	}
}
