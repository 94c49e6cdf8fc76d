// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// version and commit are set by the linker (see the Makefile); without them the build's own records are asked.
var version, commit string

type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// File is the file that runs, and Others are those of the same name on the PATH, the first one first.
	File   string      `json:"file,omitempty"`
	Others []otherFile `json:"others,omitempty"`
}

// otherFile is another file of the same name. Before says that the PATH leads to it first.
type otherFile struct {
	File   string `json:"file"`
	Before bool   `json:"before"`
}

func thisVersion() versionInfo {
	v := versionInfo{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Revision = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	if version != "" {
		v.Version = version
	}
	if commit != "" {
		v.Revision, v.Modified = commit, false
	}
	return v
}

// String is the line that "cohort --version" prints.
func (v versionInfo) String() string {
	text := "cohort " + v.Version
	if v.Revision != "" {
		text += ", commit " + v.Revision
		if v.Modified {
			text += " and changes"
		}
	}
	return text + ", " + v.Go + ", " + v.Platform
}

// details are the lines that "cohort version" prints.
func (v versionInfo) details() string {
	var text strings.Builder
	text.WriteString(v.String())
	if v.File != "" {
		text.WriteString("\nruns as " + printable.Line(v.File))
	}
	for _, o := range v.Others {
		place := "after it"
		if o.Before {
			place = "before it"
		}
		fmt.Fprintf(&text, "\nanother one is on the PATH, %s: %s", place, printable.Line(o.File))
	}
	return text.String()
}

const (
	maxFolders = 256 // of the PATH
	maxOthers  = 16  // that are listed
)

// othersOf lists the files on the path that have the name of the one that runs and are not it. Those before it are what a shell runs, if it
// is on the path at all.
func othersOf(file, path string) []otherFile {
	self, err := os.Stat(file)
	if err != nil {
		return nil
	}
	var others []otherFile
	seen := []os.FileInfo{self}
	before := -1 // how many of others come before it
	folders := filepath.SplitList(path)
	for _, folder := range folders[:min(len(folders), maxFolders)] {
		name := filepath.Join(folder, filepath.Base(file))
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() || runtime.GOOS != "windows" && info.Mode()&0o111 == 0 {
			continue
		}
		if os.SameFile(info, self) && before < 0 {
			before = len(others)
		}
		if !sameAsOne(info, seen) && len(others) < maxOthers {
			seen = append(seen, info)
			others = append(others, otherFile{File: name})
		}
	}
	for i := range others[:max(before, 0)] {
		others[i].Before = true
	}
	return others
}

// sameAsOne reports whether a file is one of those that were seen, under another name.
func sameAsOne(info os.FileInfo, seen []os.FileInfo) bool {
	for _, s := range seen {
		if os.SameFile(info, s) {
			return true
		}
	}
	return false
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, and which file runs",
		Long: strings.TrimSpace(`
Print the version, the file that runs, and other files of the same name on the PATH, such
as one in a Python environment beside one for all users. With --version only the version.`),
		Args: command.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			v := thisVersion()
			if file, err := os.Executable(); err == nil {
				v.File, v.Others = file, othersOf(file, a.Getenv("PATH"))
			}
			return a.Print("version", v, v.details())
		},
	}
}
