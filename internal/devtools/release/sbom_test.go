// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModules(t *testing.T) {
	t.Parallel()
	doc := describe(&debug.BuildInfo{
		GoVersion: "go1.26.1",
		Main:      debug.Module{Path: "example.org/prog", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "example.org/a/v2", Version: "v2.1.0+incompatible", Sum: "h1:abc="},
			{Path: "example.org/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/fork", Version: "v1.0.1"}},
		},
		Settings: []debug.BuildSetting{{Key: "-ldflags", Value: "-X main.version=v0.1.0"}, {Key: "CGO_ENABLED", Value: "0"}},
	}, "v0.1.0")
	if got, want := doc.Metadata.Component, (component{
		Type: "application", Ref: "pkg:golang/example.org/prog@v0.1.0", Name: "example.org/prog", Version: "v0.1.0",
		PURL: "pkg:golang/example.org/prog@v0.1.0", Properties: []property{{"go:build:CGO_ENABLED", "0"}},
	}); !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	var refs []string
	for _, c := range doc.Components {
		refs = append(refs, c.Ref)
	}
	want := []string{"pkg:golang/stdlib@1.26.1", "pkg:golang/example.org/a/v2@v2.1.0+incompatible", "pkg:golang/example.org/fork@v1.0.1"}
	if !cmp.Equal(refs, want) {
		t.Error(cmp.Diff(want, refs))
	}
	if got := []dependency{{doc.Metadata.Component.Ref, want}}; !cmp.Equal(doc.Dependencies, got) {
		t.Error(cmp.Diff(got, doc.Dependencies))
	}
}

func TestModulesOfBinary(t *testing.T) {
	t.Parallel()
	name, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	out, err := sbom("v0.1.0", "cohort", binary)
	if err != nil {
		t.Fatal(err)
	}
	var doc document
	if err = json.Unmarshal(out, &doc); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(binary)
	if got := doc.Metadata.Component.Hashes; !cmp.Equal(got, []hash{{"SHA-256", hex.EncodeToString(sum[:])}}) {
		t.Errorf("hashes %v", got)
	}
	if got, want := doc.Components[0].Version, strings.TrimPrefix(runtime.Version(), "go"); got != want {
		t.Errorf("standard library %q, not %q", got, want)
	}
	if _, err = sbom("v0.1.0", "text", []byte("not a program")); err == nil {
		t.Error("a file that is not a Go binary has a list")
	}
}
