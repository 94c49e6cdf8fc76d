// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// made for: what the header of a program says.
var (
	elfMachines   = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "386": elf.EM_386}
	machoMachines = map[string]macho.Cpu{"amd64": macho.CpuAmd64, "arm64": macho.CpuArm64}
)

// checkFormat: a program is for its platform, and on Linux it needs no library.
func checkFormat(p platform, data []byte) error {
	switch r := bytes.NewReader(data); p.os {
	case "linux":
		f, err := elf.NewFile(r)
		if err != nil {
			return err
		}
		libraries, _ := f.ImportedLibraries()
		if f.Machine != elfMachines[p.arch] || len(libraries) > 0 || f.Section(".interp") != nil {
			return fmt.Errorf("it is for %v and needs %q", f.Machine, libraries)
		}
	case "darwin":
		f, err := macho.NewFile(r)
		if err != nil {
			return err
		}
		if f.Cpu != machoMachines[p.arch] {
			return fmt.Errorf("it is for %v", f.Cpu)
		}
	case "windows":
		f, err := pe.NewFile(r)
		if err != nil {
			return err
		}
		if f.Machine != pe.IMAGE_FILE_MACHINE_AMD64 {
			return fmt.Errorf("it is for %v", f.Machine)
		}
	default:
		return errors.New("no such system")
	}
	return nil
}

// emulator returns the program that runs those of a platform, "" for this machine, and whether there is one.
func emulator(p platform) (name string, found bool) {
	if p == host() || p.os == "linux" && p.arch == "386" && host().String() == "linux/amd64" {
		return "", true
	}
	if p.String() != emulated || runtime.GOOS != "linux" {
		return "", false
	}
	name, err := exec.LookPath("qemu-aarch64-static")
	return name, err == nil
}

// checkProgram looks at a program, and runs it alone in an empty folder if that can be: without /proc, a C library, a compiler and Go.
func (m made) checkProgram(t *testing.T, p platform, data []byte) {
	t.Helper()
	if err := checkFormat(p, data); err != nil {
		t.Errorf("%s: %v", p, err)
	}
	with, can := emulator(p)
	if !can {
		t.Logf("%s was not run: nothing here runs it", p)
		return
	}
	root := t.TempDir()
	args := []string{filepath.Join(root, p.exe()), "version"}
	if err := os.WriteFile(args[0], data, 0o755); err != nil {
		t.Fatal(err)
	}
	if with != "" {
		copied := filepath.Join(root, "emulator")
		program, err := os.ReadFile(with)
		if err != nil {
			t.Fatal(err)
		}
		if err = os.WriteFile(copied, program, 0o755); err != nil {
			t.Fatal(err)
		}
		args = append([]string{copied}, args...)
	}
	if canChroot() {
		for i := range args {
			args[i] = strings.TrimPrefix(args[i], root)
		}
		args = append([]string{"chroot", "--userspec=65534:65534", root}, args...)
	}
	out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
	text := string(out)
	if err != nil || !strings.HasPrefix(text, "cohort v"+m.source.version+", commit ") || !strings.Contains(text, p.String()) {
		t.Errorf("cohort version: %v\n%s", err, out)
	}
}

// canChroot: empty roots need the rights of root, on Linux.
func canChroot() bool {
	_, err := exec.LookPath("chroot")
	return runtime.GOOS == "linux" && os.Getuid() == 0 && err == nil
}
