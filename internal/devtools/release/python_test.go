// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// environment is a fresh virtual environment, and the pip of the Python that made it.
type environment struct{ python, dir string }

// newEnvironment skips the test where Python cannot make one.
func newEnvironment(t *testing.T) environment {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	if out, err := exec.CommandContext(t.Context(), python, "-m", "pip", "--version").CombinedOutput(); err != nil {
		t.Skipf("python3 has no pip here: %s", out)
	}
	e := environment{python, filepath.Join(t.TempDir(), "venv")}
	if out, err := exec.CommandContext(t.Context(), python, "-m", "venv", "--without-pip", e.dir).CombinedOutput(); err != nil {
		t.Skipf("python3 makes no virtual environment here: %s", out)
	}
	if out, err := e.pip(t, "list").CombinedOutput(); err != nil {
		t.Skipf("pip does not know --python: %s", out)
	}
	return e
}

// bin is a program of the environment.
func (e environment) bin(name string) string { return filepath.Join(e.dir, "bin", name) }

// pip runs for the environment, without a network and without the user's settings.
func (e environment) pip(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), e.python, append([]string{"-m", "pip", "--isolated", "--python", e.bin("python")}, args...)...)
	cmd.Env = append(os.Environ(), "PIP_DISABLE_PIP_VERSION_CHECK=1")
	return cmd
}

// says runs a command and compares what it prints.
func says(t *testing.T, want, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PYTHONPATH=")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("%s %q: %v\n%s\ndoes not begin with %q", name, args, err, out, want)
	}
}

// TestInstall: pip installs the wheel, both names and Python find the program, and nothing is left after its removal.
func TestInstall(t *testing.T) {
	t.Parallel()
	m := release(t)
	if host().wheelTag == "" {
		t.Skip("no wheel is made for " + host().String())
	}
	wheel, _ := m.file(t, m.wheelName(host()))
	e := newEnvironment(t)
	if out, err := e.pip(t, "install", "--no-index", wheel).CombinedOutput(); err != nil {
		t.Fatalf("pip install: %v\n%s", err, out)
	}
	if out, err := e.pip(t, "check").CombinedOutput(); err != nil {
		t.Errorf("pip check: %v\n%s", err, out)
	}
	version := "cohort v" + m.source.version
	says(t, version, e.bin("cohort"), "version")
	says(t, version, e.bin("cohort-dist"), "version")
	link := filepath.Join(t.TempDir(), "cohort-dist") // as pipx and uv make them
	if err := os.Symlink(e.bin("cohort-dist"), link); err != nil {
		t.Fatal(err)
	}
	says(t, version, link, "version")
	says(t, version, e.bin("python"), "-m", "cohort_dist", "version")
	says(t, version, e.bin("python"), "-I", "-m", "cohort_dist", "version")
	says(t, m.source.version+" "+e.bin("cohort"), e.bin("python"), "-c",
		"import cohort_dist; print(cohort_dist.__version__, cohort_dist.binary())")
	says(t, "[]", e.bin("python"), "-c",
		"import sys, cohort_dist; print([m for m in sys.modules if m in ('torch', 'ctypes', 'subprocess', 'importlib.metadata')])")
	if _, err := os.Stat(e.bin("torchrun")); err == nil {
		t.Error("torchrun was installed")
	}
	if out, err := e.pip(t, "uninstall", "-y", "cohort-dist").CombinedOutput(); err != nil {
		t.Fatalf("pip uninstall: %v\n%s", err, out)
	}
	for _, left := range []string{e.bin("cohort"), e.bin("cohort-dist")} {
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s is left", left)
		}
	}
	// Without an installation: a wheel is a zip file that Python can import, and the program is the one on the PATH.
	says(t, version, "env", "PYTHONPATH="+wheel, "PATH="+filepath.Join(e.dir, "bin")+string(os.PathListSeparator)+program(t, wheel),
		e.bin("python"), "-m", "cohort_dist", "version")
	// In a folder that is not an environment.
	target := filepath.Join(t.TempDir(), "target")
	if out, err := e.pip(t, "install", "--no-index", "--target", target, wheel).CombinedOutput(); err != nil {
		t.Fatalf("pip install --target: %v\n%s", err, out)
	}
	says(t, filepath.Join(target, "bin", "cohort"), e.bin("python"), "-c",
		"import sys; sys.path.insert(0, "+pythonString(target)+"); import cohort_dist; print(cohort_dist.binary())")
}

func pythonString(s string) string { return "'" + strings.ReplaceAll(s, "'", `\'`) + "'" }

// program unpacks the program of a wheel into a folder, which it returns.
func program(t *testing.T, wheel string) string {
	t.Helper()
	data, err := os.ReadFile(wheel)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, e := range second(unzip(t, data)) {
		if strings.HasSuffix(name, "/scripts/cohort") {
			if err = os.WriteFile(filepath.Join(dir, "cohort"), e.data, e.mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func second[A, B any](_ A, b B) B { return b }

// TestTags: pip takes the wheel that belongs to a system, on systems of other kinds too.
func TestTags(t *testing.T) {
	t.Parallel()
	m := release(t)
	e := newEnvironment(t)
	for _, c := range []struct{ system, platform string }{
		{"musllinux_1_1_x86_64", "linux/amd64"}, // with glibc it is installed by the other tests
		{"manylinux_2_17_aarch64", "linux/arm64"},
		{"macosx_14_0_x86_64", "darwin/amd64"},
		{"macosx_14_0_arm64", "darwin/arm64"},
	} {
		p, err := choose(c.platform)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(m.platforms, func(q platform) bool { return q == p[0] }) {
			continue
		}
		out := t.TempDir()
		cmd := e.pip(t, "download", "--no-index", "--no-deps", "--find-links", m.first, "--only-binary=:all:", "--platform", c.system,
			"-d", out, "cohort-dist")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", c.system, err, text)
		} else if _, err = os.Stat(filepath.Join(out, m.wheelName(p[0]))); err != nil {
			t.Errorf("%s: %v\n%s", c.system, err, text)
		}
	}
}

// TestSdist: pip makes of the source distribution the wheel of the release, byte for byte.
func TestSdist(t *testing.T) {
	t.Parallel()
	m := release(t)
	if host().wheelTag == "" {
		t.Skip("no wheel is made for " + host().String())
	}
	sdist, packed := m.file(t, "cohort_dist-*.tar.gz")
	entries := untar(t, gunzip(t, packed))
	prefix := "cohort_dist-" + m.source.version + "/"
	for _, name := range []string{"pyproject.toml", "PKG-INFO", "RELEASE", "python/cohort_build.py", "go.work", "cmd/cohort/main.go"} {
		if len(entries[prefix+name].data) == 0 {
			t.Errorf("no %s", name)
		}
	}
	if entries[prefix+"scripts/modules"].mode != 0o755 {
		t.Errorf("a script has the mode %v", entries[prefix+"scripts/modules"].mode)
	}
	e := newEnvironment(t)
	out := t.TempDir()
	cmd := e.pip(t, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir", "-w", out, sdist)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pip wheel: %v\n%s", err, text)
	}
	wheel, want := m.file(t, m.wheelName(host()))
	got, err := os.ReadFile(filepath.Join(out, filepath.Base(wheel)))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the wheel of the source distribution differs: %v, %d and %d bytes", err, len(got), len(want))
	}
}
