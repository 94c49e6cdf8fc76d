// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	distribution  = "cohort-dist" // as users write it to pip
	pythonPackage = "cohort_dist"
	pythonFolder  = "python/" + pythonPackage
)

// metadata describes the package for Python's installers; the page python/README.md follows.
const metadataFormat = `Metadata-Version: 2.1
Name: ` + distribution + `
Version: %s
Summary: Launch, watch and debug torch.distributed jobs: a torchrun that says which rank failed, and why a job hangs
Home-page: https://` + module + `
License: Apache-2.0
Requires-Python: >=3.8
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Operating System :: MacOS
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: System :: Distributed Computing
Classifier: Typing :: Typed
License-File: LICENSE
Description-Content-Type: text/markdown

`

// alias is the command named like the distribution, which "uvx cohort-dist" and "pipx run cohort-dist" look for. It runs the other one,
// which stands beside it, also when it was called through a link.
const alias = `#!/bin/sh
self=$(readlink -f "$0") || self=$0
exec "${self%/*}/cohort" "$@"
`

// wheel packs the binary as a script, which an installer puts into the folder of programs as it is: calling it starts no Python.
func (s source) wheel(p platform, binary []byte) (artifact, error) {
	if p.wheelTag == "" {
		return artifact{}, fmt.Errorf("no wheel is made for %s: use the binary", p)
	}
	prefix := pythonPackage + "-" + s.version
	entries, err := s.pythonFiles()
	if err != nil {
		return artifact{}, err
	}
	licence, err := s.read("LICENSE")
	if err != nil {
		return artifact{}, err
	}
	about, err := s.about()
	if err != nil {
		return artifact{}, err
	}
	modules, err := sbom("v"+s.version, p.exe(), binary)
	if err != nil {
		return artifact{}, err
	}
	entries = append(entries,
		entry{prefix + ".data/scripts/cohort", 0o755, binary},
		entry{prefix + ".data/scripts/" + distribution, 0o755, []byte(alias)},
		entry{prefix + ".dist-info/LICENSE", 0o644, licence},
		entry{prefix + ".dist-info/METADATA", 0o644, about},
		entry{prefix + ".dist-info/WHEEL", 0o644, wheelFile(p.wheelTag)},
		entry{prefix + ".dist-info/sboms/cohort.cdx.json", 0o644, modules},
	)
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	entries = append(entries, record(prefix+".dist-info/RECORD", entries))
	data, err := s.zip(entries)
	return artifact{prefix + "-py3-none-" + p.wheelTag + ".whl", data}, err
}

// about is the file METADATA of the wheel and PKG-INFO of the source distribution.
func (s source) about() ([]byte, error) {
	page, err := s.read("python/README.md")
	return append(fmt.Appendf(nil, metadataFormat, s.version), page...), err
}

// pythonFiles are the files of the Python package.
func (s source) pythonFiles() ([]entry, error) {
	files, err := os.ReadDir(filepath.Join(s.root, pythonFolder))
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, f := range files {
		if name := f.Name(); strings.HasSuffix(name, ".py") || name == "py.typed" {
			data, err := s.read(pythonFolder + "/" + name)
			if err != nil {
				return nil, err
			}
			entries = append(entries, entry{pythonPackage + "/" + name, 0o644, data})
		}
	}
	return entries, nil
}

// wheelFile says what the name of the wheel says, one tag a line.
func wheelFile(tags string) []byte {
	text := []byte("Wheel-Version: 1.0\nGenerator: cohort\nRoot-Is-Purelib: false\n")
	for tag := range strings.SplitSeq(tags, ".") {
		text = append(text, "Tag: py3-none-"+tag+"\n"...)
	}
	return text
}

// record lists the files with their hashes, and last itself.
func record(name string, entries []entry) entry {
	var b strings.Builder
	for _, e := range entries {
		sum := sha256.Sum256(e.data)
		fmt.Fprintf(&b, "%s,sha256=%s,%d\n", e.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(e.data))
	}
	fmt.Fprintf(&b, "%s,,\n", name)
	return entry{name, 0o644, []byte(b.String())}
}

// zip writes the sizes before the files, for installers that unpack while they receive.
func (s source) zip(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, e := range entries {
		packed, err := deflated(e.data)
		if err != nil {
			return nil, err
		}
		h := &zip.FileHeader{
			Name: e.name, Method: zip.Deflate, Modified: s.when, CRC32: crc32.ChecksumIEEE(e.data),
			CompressedSize64: uint64(len(packed)), UncompressedSize64: uint64(len(e.data)),
		}
		h.SetMode(e.mode)
		f, err := w.CreateRaw(h)
		if err != nil {
			return nil, err
		}
		if _, err = f.Write(packed); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func deflated(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.DefaultCompression)
	if err != nil {
		return nil, err
	}
	if _, err = w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}
