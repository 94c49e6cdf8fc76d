// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package schematest checks JSON against the schemas of the command. It knows the part of JSON Schema that they use, and is stricter
// than readers have to be: a field or a value that the schema does not name is an error.
package schematest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Schema is a schema, or a part of one.
type Schema struct {
	Type       string             `json:"type"`
	Const      any                `json:"const"`
	Pattern    string             `json:"pattern"`
	Format     string             `json:"format"`
	Minimum    *float64           `json:"minimum"`
	Values     []string           `json:"x-extensible-enum"`
	Items      *Schema            `json:"items"`
	Properties map[string]*Schema `json:"properties"`
	Required   []string           `json:"required"`
	// Additional is nil, true, or the schema of fields that are not named.
	Additional json.RawMessage    `json:"additionalProperties"`
	Ref        string             `json:"$ref"`
	Defs       map[string]*Schema `json:"$defs"`

	Dialect     string `json:"$schema"`
	ID          string `json:"$id"`
	Title       string `json:"title"`
	Description string `json:"description"`
}

// Parse reads a schema. A keyword that this package does not know is an error.
func Parse(text []byte) (*Schema, error) {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	s := new(Schema)
	if err := d.Decode(s); err != nil {
		return nil, err
	}
	return s, nil
}

// Load reads the schema of a form from the repository that the test runs in, which is the nearest folder above with a go.work.
func Load(name string) (*Schema, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err = os.Stat(filepath.Join(dir, "go.work")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			return nil, errors.New("schematest: no folder above has the repository")
		}
	}
	//nolint:gosec // it is a file of the repository
	text, err := os.ReadFile(filepath.Join(dir, "cmd", "cohort", "internal", "schema", name+".json"))
	if err != nil {
		return nil, err
	}
	return Parse(text)
}

// Check says what is wrong with a document, each with where it is; nothing if it is right.
func (s *Schema) Check(text []byte) []string {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return []string{err.Error()}
	}
	c := checker{defs: s.Defs}
	c.check("", s, v)
	return c.wrong
}

type checker struct {
	defs  map[string]*Schema
	wrong []string
}

func (c *checker) fail(at, format string, args ...any) {
	c.wrong = append(c.wrong, strings.TrimPrefix(at, ".")+": "+fmt.Sprintf(format, args...))
}

func (c *checker) check(at string, s *Schema, v any) {
	if s.Ref != "" {
		def := c.defs[strings.TrimPrefix(s.Ref, "#/$defs/")]
		if def == nil {
			c.fail(at, "the schema has no %s", s.Ref)
			return
		}
		s = def
	}
	if s.Const != nil && v != s.Const {
		c.fail(at, "%v, not %v", v, s.Const)
	}
	if s.Type == "" {
		return
	}
	if got := typeOf(v); got != s.Type && (got != "integer" || s.Type != "number") {
		c.fail(at, "%v is of type %s, not %s", v, got, s.Type)
		return
	}
	switch v := v.(type) {
	case string:
		c.text(at, s, v)
	case float64:
		if s.Minimum != nil && v < *s.Minimum {
			c.fail(at, "%v is less than %v", v, *s.Minimum)
		}
	case []any:
		for i, item := range v {
			c.check(fmt.Sprintf("%s[%d]", at, i), s.Items, item)
		}
	case map[string]any:
		c.object(at, s, v)
	}
}

func (c *checker) text(at string, s *Schema, v string) {
	if s.Values != nil && !slices.Contains(s.Values, v) {
		c.fail(at, "%q is none of %q", v, s.Values)
	}
	if s.Pattern != "" && !regexp.MustCompile(s.Pattern).MatchString(v) {
		c.fail(at, "%q does not match %s", v, s.Pattern)
	}
	if s.Format != "date-time" {
		return
	}
	if t, err := time.Parse(time.RFC3339Nano, v); err != nil || t.IsZero() || !strings.HasSuffix(v, "Z") {
		c.fail(at, "%q is not a time in UTC", v)
	}
}

func (c *checker) object(at string, s *Schema, v map[string]any) {
	for _, name := range s.Required {
		if _, there := v[name]; !there {
			c.fail(at, "%q is missing", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		field := s.Properties[name]
		switch more := strings.TrimSpace(string(s.Additional)); {
		case field != nil:
			c.check(at+"."+name, field, v[name])
		case more == "true":
		case more != "":
			other, err := Parse(s.Additional)
			if err != nil {
				c.fail(at, "%v", err)
				return
			}
			c.check(at+"."+name, other, v[name])
		default:
			c.fail(at, "the schema does not name %q", name)
		}
	}
}

func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
		return "number"
	}
	return "object"
}
