// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
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

// sbom lists the modules that a Go binary is made of, as a CycloneDX 1.6 document. It reads what the Go linker wrote into the binary, the
// same as `go version -m` prints.
func sbom(version, name string, binary []byte) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("list the modules of %s: %w", name, err)
	}
	sum := sha256.Sum256(binary)
	doc := describe(info, version)
	doc.Metadata.Component.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum[:])}}
	doc.Metadata.Component.Properties = append([]property{{"cohort:file", name}}, doc.Metadata.Component.Properties...)
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // package URLs contain "&"
	enc.SetIndent("", "  ")
	err = enc.Encode(doc)
	return out.Bytes(), err
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
