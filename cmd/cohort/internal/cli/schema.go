// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/schema"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
)

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema [NAME]",
		Short: "Print the JSON schema of what commands print with --json",
		Long: strings.TrimSpace(`
Print the JSON schema of a form, or list the forms. Each object that a command prints with
--json names its form in its first field, "schema". Within a version fields and values are
only added: a program ignores those that it does not know.`),
		Example: strings.Trim(`
  cohort schema                     list the forms
  cohort schema cohort.job.v1       the report of cohort run; what cohort why and cohort ps print
  cohort schema job                 the same`, "\n"),
		Args: command.Between(0, 1, "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.listSchemas()
			}
			text, err := schema.Text(args[0])
			if err != nil {
				return err
			}
			_, err = a.Out.Write(text)
			return err
		},
	}
}

func (a *app) listSchemas() error {
	forms, err := schema.All()
	if err != nil {
		return err
	}
	rows := make([][]string, 0, len(forms))
	for _, f := range forms {
		if a.JSON {
			if err := a.Print("schema", f, ""); err != nil {
				return err
			}
		}
		rows = append(rows, []string{f.Name, f.About})
	}
	if a.JSON {
		return nil
	}
	return a.PrintText(strings.TrimSuffix(tui.Columns(rows), "\n"))
}
