// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// platform is what a binary runs on.
type platform struct {
	os, arch string
	wheelTag string // the platform as Python's installers name it; no wheel is made without one
	image    bool   // it is in the container image
}

// platforms are those that a release is made for. The binary is static, so that one wheel serves every C library of Linux. Go 1.26 needs
// macOS 12.
var platforms = []platform{
	{"linux", "amd64", "manylinux_2_17_x86_64.musllinux_1_1_x86_64", true},
	{"linux", "arm64", "manylinux_2_17_aarch64.musllinux_1_1_aarch64", true},
	{"linux", "386", "", false},
	{"darwin", "amd64", "macosx_12_0_x86_64", false},
	{"darwin", "arm64", "macosx_12_0_arm64", false},
	{"windows", "amd64", "", false},
}

func (p platform) String() string { return p.os + "/" + p.arch }

// exe is the name of the binary.
func (p platform) exe() string {
	if p.os == "windows" {
		return "cohort.exe"
	}
	return "cohort"
}

// choose returns the platforms of these names, with commas between, or all.
func choose(names string) ([]platform, error) {
	if names == "" {
		return platforms, nil
	}
	var chosen []platform
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(platforms, func(p platform) bool { return p.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("no platform %q; there are %v", name, platforms)
		}
		chosen = append(chosen, platforms[i])
	}
	return chosen, nil
}

// host is the platform of this process.
func host() platform {
	if known, err := choose(runtime.GOOS + "/" + runtime.GOARCH); err == nil {
		return known[0]
	}
	return platform{os: runtime.GOOS, arch: runtime.GOARCH}
}

// build returns the static binary. Neither the folder nor the user's settings for Go are in it.
func build(ctx context.Context, s source, p platform) ([]byte, error) { return s.compile(ctx, p) }

// compile builds with more flags for the compiler.
func (s source) compile(ctx context.Context, p platform, more ...string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "cohort-release-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	name := filepath.Join(dir, p.exe())
	const cli = module + "/cmd/cohort/internal/cli"
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-mod=readonly"}, more...)
	linker := fmt.Sprintf("-s -w -X %s.version=v%s -X %s.commit=%s", cli, s.version, cli, s.commit)
	args = append(args, "-ldflags", linker, "-o", name, "./cmd/cohort")
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the Go command, with arguments of ours
	cmd.Dir = s.root
	cmd.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, "CGO_ENABLED=0", "GOFLAGS=", "GOEXPERIMENT=",
		"GOAMD64=v1", "GO386=sse2", "GOARM64=v8.0", "GOWORK=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build for %s: %w\n%s", p, err, strings.TrimSpace(string(out)))
	}
	return os.ReadFile(name) //nolint:gosec // just written
}
