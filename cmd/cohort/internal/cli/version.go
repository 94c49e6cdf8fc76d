// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
)

// version and commit are set by the linker (see the Makefile); without them the build's own records are asked.
var version, commit string

type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
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

// String is the line that "cohort version" prints.
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

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  command.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			v := thisVersion()
			return a.Print(v, v.String())
		},
	}
}
