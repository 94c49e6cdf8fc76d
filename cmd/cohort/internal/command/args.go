// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NoSuchCommand is the Args check of a command that only has sub-commands.
func NoSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	text := fmt.Sprintf("unknown command %q", cmd.CommandPath()+" "+args[0])
	if near := cmd.SuggestionsFor(args[0]); args[0] != "" && len(near) > 0 {
		// Few people mistype the first letter.
		best := max(0, slices.IndexFunc(near, func(name string) bool { return strings.HasPrefix(args[0], name[:1]) }))
		text += fmt.Sprintf("; did you mean %q?", cmd.CommandPath()+" "+near[best])
	} else {
		text += fmt.Sprintf("; %q lists them", cmd.CommandPath()+" --help")
	}
	return Usage(errors.New(text))
}

// PlainFlagError says what the value of a flag must be, where the error would name a Go function.
func PlainFlagError(err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	kind := map[string]string{
		"int": "a whole number", "int64": "a whole number", "float64": "a number",
		"duration": "a duration such as 90s or 2m", "bool": "true or false",
	}[bad.GetFlag().Value.Type()]
	if kind == "" {
		return err
	}
	return fmt.Errorf("--%s %s: it must be %s", bad.GetFlag().Name, bad.GetValue(), kind)
}

// Exactly is cobra.ExactArgs with a plain error.
func Exactly(names ...string) cobra.PositionalArgs {
	return Between(len(names), len(names), names...)
}

// Between checks the number of arguments and names the one that is missing.
func Between(least, most int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return Usage(fmt.Errorf("%s is missing; usage: %s", names[len(args)], cmd.UseLine()))
		case most >= 0 && len(args) > most:
			return Usage(fmt.Errorf("%q is one argument too many; usage: %s", args[most], cmd.UseLine()))
		}
		return nil
	}
}
