// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command sbom lists the modules that a Go binary is made of, as a CycloneDX 1.6 document on standard output. It reads what
// the Go linker wrote into the binary, the same as `go version -m` prints.
//
//	go run ./internal/devtools/sbom v0.1.0 bin/cohort
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// document is the part of CycloneDX that is used here.
type document struct {
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("usage: sbom VERSION BINARY")
	}
	version, name := args[0], args[1]
	info, err := buildinfo.ReadFile(name)
	if err != nil {
		return err
	}
	binary, err := os.ReadFile(name) //nolint:gosec // the file that is asked for
	if err != nil {
		return err
	}
	sum := sha256.Sum256(binary)
	doc := describe(info, version)
	doc.Metadata.Component.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum[:])}}
	doc.Metadata.Component.Properties = append([]property{{"cohort:file", filepath.Base(name)}}, doc.Metadata.Component.Properties...)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false) // package URLs contain "&"
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}

// describe lists the modules of a binary. The version is that of the main module, which a build from a checkout does not know.
func describe(info *debug.BuildInfo, version string) document {
	root := library(info.Main.Path, version)
	root.Type = "application"
	for _, s := range info.Settings {
		if s.Key != "-ldflags" { // the version and the commit, which are told elsewhere
			root.Properties = append(root.Properties, property{"go:build:" + s.Key, s.Value})
		}
	}
	doc := document{Format: "CycloneDX", SpecVersion: "1.6", Version: 1, Metadata: metadata{root}}
	doc.Components = append(doc.Components, library("stdlib", strings.TrimPrefix(info.GoVersion, "go")))
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := library(m.Path, m.Version)
		if m.Sum != "" {
			c.Properties = []property{{"go:sum", m.Sum}}
		}
		doc.Components = append(doc.Components, c)
	}
	edges := dependency{Ref: root.Ref}
	for _, c := range doc.Components {
		edges.DependsOn = append(edges.DependsOn, c.Ref)
	}
	doc.Dependencies = []dependency{edges}
	return doc
}

// library is a module as a component. Scanners for vulnerabilities know the standard library as the module stdlib.
func library(path, version string) component {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	purl := "pkg:golang/" + strings.Join(segments, "/") + "@" + url.PathEscape(version)
	return component{Type: "library", Ref: purl, Name: path, Version: version, PURL: purl}
}
