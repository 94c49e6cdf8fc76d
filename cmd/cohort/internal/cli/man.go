// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/runflags"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write a manual page for every command into a folder",
		Long: strings.TrimSpace(`
Write the manual pages cohort.1, cohort-run.1 and so on into a folder.`),
		Example: "  cohort man ~/.local/share/man/man1 && man cohort-run",
		Args:    command.Exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // for everybody to read
				return err
			}
			n := 0
			for _, c := range visible(cmd.Root()) {
				name := filepath.Join(args[0], strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
				if err := os.WriteFile(name, []byte(manPage(c)), 0o644); err != nil { //nolint:gosec // for everybody to read
					return err
				}
				n++
			}
			return a.Print("man", map[string]any{"pages": n, "folder": args[0]}, fmt.Sprintf("%d pages in %s", n, args[0]))
		},
	}
}

// visible lists a command and those below it that people call.
func visible(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			all = append(all, visible(sub)...)
		}
	}
	return all
}

// afterList is where a paragraph goes on after an indented line, to which roff would join it.
var afterList = regexp.MustCompile(`(?m)(^ .*\n)([^ ])`)

// manPage returns the manual page of a command in roff.
func manPage(c *cobra.Command) string {
	var b strings.Builder
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"cohort %s\" \"cohort\"\n", roff(strings.ToUpper(name)), roff(thisVersion().Version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(c.Short))
	if c.Runnable() {
		fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.UseLine()))
	}
	if c.Long != "" {
		b.WriteString(".SH DESCRIPTION\n")
		for paragraph := range strings.SplitSeq(c.Long, "\n\n") {
			if strings.HasPrefix(paragraph, " ") { // a table
				fmt.Fprintf(&b, ".PP\n.nf\n%s\n.fi\n", roff(paragraph))
				continue
			}
			fmt.Fprintf(&b, ".PP\n%s\n", afterList.ReplaceAllString(roff(paragraph), "$1.br\n$2"))
		}
	}
	writeOptions(&b, c)
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	var see []string
	if p := c.Parent(); p != nil {
		see = append(see, roff(strings.ReplaceAll(p.CommandPath(), " ", "-")))
	}
	for _, sub := range visible(c)[1:] {
		if sub.Parent() == c {
			see = append(see, roff(strings.ReplaceAll(sub.CommandPath(), " ", "-")))
		}
	}
	if len(see) > 0 {
		slices.Sort(see)
		b.WriteString(".SH SEE ALSO\n.BR " + strings.Join(see, " (1),\n.BR ") + " (1)\n")
	}
	return b.String()
}

func writeOptions(b *strings.Builder, c *cobra.Command) {
	if c.DisableFlagParsing { // "cohort run" has options in torchrun's manner
		fmt.Fprintf(b, ".SH OPTIONS\n.nf\n%s\n.fi\n", roff(strings.TrimRight(runflags.Usage(), "\n")))
		return
	}
	titled := false
	list := func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		if !titled {
			b.WriteString(".SH OPTIONS\n")
			titled = true
		}
		left := "--" + f.Name
		if f.Shorthand != "" {
			left = "-" + f.Shorthand + ", " + left
		}
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			left += " " + kind
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(left), roff(usage))
	}
	c.LocalFlags().VisitAll(list)
	c.InheritedFlags().VisitAll(list)
}

// roff makes text mean itself.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
