// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	// versionFile holds the version, for this program and for Python.
	versionFile = "python/cohort_dist/_version.py"
	// recordFile stands in a source distribution, which has no git: the commit and its time, so that it builds the same bytes.
	recordFile = "RELEASE"
	module     = "github.com/cohort-dist/cohort"
)

// source is the state of the repository that a release is made of.
type source struct {
	root, version, commit string
	when                  time.Time
}

var (
	versionLine = regexp.MustCompile(`(?m)^__version__ = "(\d+\.\d+\.\d+(?:[0-9A-Za-z.]+)?)"$`)
	recordLines = regexp.MustCompile(`^commit (\S*)\ntime (\d+)\n$`)
)

// earliest is the first time that a zip file can name.
var earliest = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

func readSource(ctx context.Context, root string) (source, error) {
	s := source{root: root, when: earliest}
	text, err := os.ReadFile(filepath.Join(root, versionFile)) //nolint:gosec // a file of the repository
	if err != nil {
		return s, fmt.Errorf("read the version: %w; run this in the root of the repository", err)
	}
	found := versionLine.FindSubmatch(text)
	if found == nil {
		return s, fmt.Errorf("%s has no line __version__ = \"MAJOR.MINOR.PATCH\"", versionFile)
	}
	s.version = string(found[1])
	record, err := os.ReadFile(filepath.Join(root, recordFile)) //nolint:gosec // a file of the repository
	switch {
	case err == nil:
		return s.fromRecord(record)
	case !errors.Is(err, os.ErrNotExist):
		return s, err
	}
	if s.commit, err = s.git(ctx, "describe", "--always", "--dirty", "--exclude", "*", "--abbrev=12"); err != nil {
		return s, err
	}
	seconds, err := s.git(ctx, "log", "-1", "--format=%ct")
	if err != nil {
		return s, err
	}
	return s.at(seconds)
}

// record is what fromRecord reads.
func (s source) record() []byte {
	return fmt.Appendf(nil, "commit %s\ntime %d\n", s.commit, s.when.Unix())
}

func (s source) fromRecord(record []byte) (source, error) {
	found := recordLines.FindSubmatch(record)
	if found == nil {
		return s, fmt.Errorf("%s is damaged: it has to have the lines \"commit ID\" and \"time SECONDS\"; unpack it again", recordFile)
	}
	s.commit = string(found[1])
	return s.at(string(found[2]))
}

// at sets the time that all files of the release have.
func (s source) at(seconds string) (source, error) {
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return s, fmt.Errorf("the time of the commit: %w", err)
	}
	if when := time.Unix(n, 0).UTC(); when.After(earliest) {
		s.when = when
	}
	return s, nil
}

func (s source) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...) //nolint:gosec // our own arguments
	cmd.Dir = s.root
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// read returns a file of the repository.
func (s source) read(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.root, filepath.FromSlash(name)))
}

// tag creates the tags of all modules that do not exist, on a commit without changes whose files name the version.
func (s source) tag(ctx context.Context) error {
	if changed, err := s.git(ctx, "status", "--porcelain"); err != nil || changed != "" {
		return errors.Join(err, errors.New("the checkout has changes that are not committed: commit or remove them"))
	}
	modules, err := s.modules()
	if err != nil {
		return err
	}
	if err = s.ready(modules); err != nil {
		return err
	}
	head, err := s.git(ctx, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	for _, m := range modules {
		tag := strings.TrimPrefix(m+"/v"+s.version, "./")
		if _, err = s.git(ctx, "rev-parse", "-q", "--verify", "refs/tags/"+tag); err != nil {
			if _, err = s.git(ctx, "tag", "-a", tag, "-m", "cohort "+tag); err != nil {
				return err
			}
		}
		if at, err := s.git(ctx, "rev-parse", tag+"^{commit}"); err != nil || at != head {
			return errors.Join(err, fmt.Errorf("%s is not the commit that is checked out: check it out", tag))
		}
	}
	return nil
}

var (
	useBlock = regexp.MustCompile(`(?s)\nuse \((.*?)\n\)`)
	heading  = regexp.MustCompile(`(?m)^## (\d\S*)(.*)$`)
)

// modules are the folders that go.work lists, "." for the root.
func (s source) modules() ([]string, error) {
	work, err := s.read("go.work")
	if err != nil {
		return nil, err
	}
	found := useBlock.FindSubmatch(work)
	if found == nil {
		return nil, errors.New("go.work lists no modules")
	}
	return strings.Fields(string(found[1])), nil
}

// ready checks that the files that repeat the version agree with it.
func (s source) ready(modules []string) error {
	changes, err := s.read("CHANGELOG.md")
	if err != nil {
		return err
	}
	if first := heading.FindSubmatch(changes); first == nil || string(first[1]) != s.version {
		return fmt.Errorf("CHANGELOG.md does not begin with a section \"## %s\": write it", s.version)
	} else if strings.TrimSpace(string(first[2])) == "(not yet tagged)" {
		return fmt.Errorf("CHANGELOG.md says that %s is not yet tagged: replace that by the date", s.version)
	}
	for _, m := range modules {
		text, err := s.read(m + "/go.mod")
		if err != nil {
			return err
		}
		if m != "." && !strings.Contains(string(text), module+" v"+s.version+"\n") {
			return fmt.Errorf("%s/go.mod does not require %s v%s: change it", m, module, s.version)
		}
		for _, other := range modules {
			named := module + strings.TrimPrefix(other, ".") + " v"
			if strings.Contains(string(text), named) && !strings.Contains(string(text), named+s.version+"\n") {
				return fmt.Errorf("%s/go.mod requires %s another than v%s: change it", m, strings.TrimSuffix(named, " v"), s.version)
			}
		}
	}
	return nil
}
