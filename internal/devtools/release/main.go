// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command release makes what users install, for each platform: the archive with the static binary, shell completions and manual pages, the
// list of its modules (SBOM), and a Python wheel; and once the Python source distribution, a container image and the checksums. It needs
// Go and, in a checkout, git; neither Python nor, once the modules are there, a network. Two runs of the same commit with the same Go give
// the same bytes.
//
//	go run ./internal/devtools/release                       everything, into .tmp/release
//	go run ./internal/devtools/release -only linux/amd64     for one platform, or several with commas between
//	go run ./internal/devtools/release -wheel DIR            only the wheel for this platform; prints the name of the file
//	go run ./internal/devtools/release -sdist DIR            only the source distribution; prints the name of the file
//	go run ./internal/devtools/release -tag                  create the tags of all modules first; pushes nothing
//
// The version is the one in python/cohort_dist/_version.py.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

// options are the command line.
type options struct {
	only, out, wheel, sdist string
	tag                     bool
	build                   builder // of the binaries; tests build some of them once
}

// builder makes the static binary for a platform.
type builder func(ctx context.Context, s source, p platform) ([]byte, error)

func main() {
	o := options{build: build}
	flag.StringVar(&o.only, "only", "", "make it for these platforms, `os/arch,...`")
	flag.StringVar(&o.out, "out", filepath.Join(".tmp", "release"), "write into this `folder`; what is in it is removed")
	flag.StringVar(&o.wheel, "wheel", "", "write only a wheel, into this `folder`")
	flag.StringVar(&o.sdist, "sdist", "", "write only the source distribution, into this `folder`")
	flag.BoolVar(&o.tag, "tag", false, "create the tags of all modules first")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "release: unexpected argument %q; the version is the one in %s\n", flag.Arg(0), versionFile)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, ".", o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run makes what the options ask for, of the repository in root.
func run(ctx context.Context, root string, o options) error {
	src, err := readSource(ctx, root)
	if err != nil {
		return err
	}
	wanted, err := choose(o.only)
	if err != nil {
		return err
	}
	if o.tag {
		if err = src.tag(ctx); err != nil {
			return err
		}
	}
	switch {
	case o.wheel != "" && o.sdist != "":
		return errors.New("-wheel and -sdist each write one file: call this program twice")
	case o.wheel != "":
		return src.onlyWheel(ctx, wanted, o)
	case o.sdist != "":
		sdist, err := src.sdist(ctx)
		if err != nil {
			return err
		}
		return writeNamed(o.sdist, sdist)
	}
	return src.everything(ctx, wanted, o)
}

// onlyWheel writes one wheel, for this platform if none was named.
func (s source) onlyWheel(ctx context.Context, wanted []platform, o options) error {
	p := host()
	if o.only != "" {
		p = wanted[0]
	}
	binary, err := o.build(ctx, s, p)
	if err != nil {
		return err
	}
	w, err := s.wheel(p, binary)
	if err != nil {
		return err
	}
	return writeNamed(o.wheel, w)
}

// artifact is a file of the release.
type artifact struct {
	name string
	data []byte
}

// everything writes the files of all platforms and the list of their checksums.
func (s source) everything(ctx context.Context, wanted []platform, o options) error {
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	var sums []string
	put := func(files ...artifact) error {
		for _, f := range files {
			sums = append(sums, fmt.Sprintf("%x  %s\n", sha256.Sum256(f.data), f.name))
			if err := writeNamed(o.out, f); err != nil {
				return err
			}
		}
		return nil
	}
	native, err := o.build(ctx, s, host())
	if err != nil {
		return err
	}
	extra, err := s.documents(ctx, native)
	if err != nil {
		return err
	}
	var images []imagePart
	for _, p := range wanted {
		binary := native
		if p != host() {
			if binary, err = o.build(ctx, s, p); err != nil {
				return err
			}
		}
		files, failed := s.filesOf(p, binary, extra)
		if failed != nil {
			return failed
		}
		if err = put(files...); err != nil {
			return err
		}
		if p.os == "linux" && p.image {
			images = append(images, imagePart{p, binary})
		}
	}
	sdist, err := s.sdist(ctx)
	if err != nil {
		return err
	}
	last := []artifact{sdist}
	if len(images) > 0 {
		image, failed := s.image(images)
		if failed != nil {
			return failed
		}
		last = append(last, image)
	}
	if err = put(last...); err != nil {
		return err
	}
	slices.SortFunc(sums, func(a, b string) int { return strings.Compare(a[64:], b[64:]) })
	return writeNamed(o.out, artifact{"SHA256SUMS", []byte(strings.Join(sums, ""))})
}

// filesOf makes the files of one platform.
func (s source) filesOf(p platform, binary []byte, extra []entry) ([]artifact, error) {
	archive, err := s.archive(p, binary, extra)
	if err != nil {
		return nil, err
	}
	modules, err := sbom("v"+s.version, p.exe(), binary)
	if err != nil {
		return nil, err
	}
	files := []artifact{archive, {s.stem(p) + ".cdx.json", modules}}
	if p.wheelTag != "" {
		w, err := s.wheel(p, binary)
		if err != nil {
			return nil, err
		}
		files = append(files, w)
	}
	return files, nil
}

// writeNamed writes a file into a folder and prints its name.
func writeNamed(dir string, f artifact) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // for all to read
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, f.name), f.data, 0o644); err != nil { //nolint:gosec // for all to read
		return err
	}
	fmt.Println(f.name)
	return nil
}
