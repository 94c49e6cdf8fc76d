// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package schema holds the JSON schemas of all that the command prints with --json, one file for each form. Within a version,
// fields and values are only added.
package schema

import (
	"embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cohort-dist/cohort"
)

//go:embed *.json
var files embed.FS

// Form is one form of JSON.
type Form struct {
	Name  string `json:"name"` // "cohort.job.v1"
	About string `json:"about"`
}

// All lists the forms in the order of their names.
func All() ([]Form, error) {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var all []Form
	for _, e := range entries {
		text, err := files.ReadFile(e.Name())
		if err != nil {
			return nil, err
		}
		var s struct{ Description string }
		if err := json.Unmarshal(text, &s); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		all = append(all, Form{Name: strings.TrimSuffix(e.Name(), ".json"), About: s.Description})
	}
	return all, nil
}

// Text is the schema of a form by its name, with or without "cohort." and ".v1".
func Text(name string) ([]byte, error) {
	for _, full := range []string{name, "cohort." + name, name + ".v1", "cohort." + name + ".v1"} {
		if text, err := files.ReadFile(full + ".json"); err == nil {
			return text, nil
		}
	}
	return nil, fmt.Errorf("%w: no form of JSON is called %q; \"cohort schema\" lists them", cohort.NotFound, name)
}
