// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package datatest

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Line reads a line that is written in its own way, such as a call of a stack, into the value that it belongs to: a pointer to a struct.
type Line func(parent any, rest string) error

// Read reads an input into v, a pointer to a struct. A line is a word and fields of a value; the first value may stand without its field's
// name, and a field alone is true:
//
//	job World=2
//	rank 1 Idle=40s Moved
//	  thread 777 Kernel=pipe_read
//	note "the store has keys"
//
// The first line is the struct itself if its word names its type. Each other one belongs to the line above that is indented less by two
// spaces, and makes one more element of the field with that name, in the plural or not. Durations are written as Go writes them, texts with
// spaces in quotes, and all that is neither text, number nor time as JSON. Lines with their own form are read by special.
func Read(t *testing.T, input string, v any, special map[string]Line) {
	t.Helper()
	root := reflect.ValueOf(v)
	open := []reflect.Value{root} // the values that lines can belong to, by depth
	first := true
	for i, line := range strings.Split(input, "\n") {
		text := strings.TrimLeft(line, " ")
		depth := (len(line) - len(text)) / 2
		word, rest, _ := strings.Cut(text, " ")
		if word == "" || strings.HasPrefix(word, "#") {
			continue
		}
		if depth >= len(open) {
			t.Fatalf("line %d belongs to no line above: %s", i+1, line)
		}
		parent := open[depth]
		open = open[:depth+1]
		var err error
		switch {
		case special[word] != nil:
			err = special[word](parent.Interface(), rest)
		case first && strings.EqualFold(word, root.Elem().Type().Name()):
			err = setFields(root.Elem(), rest)
		default:
			var child reflect.Value
			if child, err = element(parent.Elem(), word); err == nil {
				err = setFields(child, rest)
				open = append(open, child.Addr())
			}
		}
		if err != nil {
			t.Fatalf("line %d: %v: %s", i+1, err, line)
		}
	}
}

// element makes a new value of the field that a word names, and returns it.
func element(parent reflect.Value, word string) (reflect.Value, error) {
	f := parent.FieldByNameFunc(func(name string) bool {
		one, many := strings.ToLower(name), strings.TrimSuffix(word, "y")
		return one == word || one == word+"s" || one == many+"ies" || one == word+"ren"
	})
	if !f.IsValid() {
		return f, fmt.Errorf("%s has no field for %q", parent.Type(), word)
	}
	switch f.Kind() {
	case reflect.Slice:
		f.Set(reflect.Append(f, reflect.Zero(f.Type().Elem())))
		return f.Index(f.Len() - 1), nil
	case reflect.Pointer:
		f.Set(reflect.New(f.Type().Elem()))
		return f.Elem(), nil
	default:
		return f, nil
	}
}

// Fields reads the fields of a line into v, a pointer to a struct.
func Fields(v any, rest string) error { return setFields(reflect.ValueOf(v).Elem(), rest) }

// setFields reads the rest of a line.
func setFields(v reflect.Value, rest string) error {
	for i := 0; rest != ""; i++ {
		var token string
		token, rest = cut(rest)
		name, value, given := strings.Cut(token, "=")
		switch {
		case v.Kind() != reflect.Struct:
			return set(v, token)
		case i == 0 && (!given || strings.HasPrefix(token, `"`)) && v.Field(0).Kind() != reflect.Bool && !v.FieldByName(token).IsValid():
			if err := set(v.Field(0), token); err != nil {
				return err
			}
			continue
		case !given:
			value = "true"
		}
		f := v.FieldByName(name)
		if !f.IsValid() {
			return fmt.Errorf("%s has no field %q", v.Type(), name)
		}
		if err := set(f, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// cut takes the first token off a line. Spaces in quotes, or in the brackets of JSON, belong to it.
func cut(line string) (token, rest string) {
	quoted, depth := byte(0), 0
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted == '"' && c == '\\':
			i++
		case quoted != 0 && c == quoted:
			quoted = 0
		case quoted != 0:
		case c == '"' || c == '`':
			quoted = c
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ' ' && depth <= 0:
			return line[:i], strings.TrimLeft(line[i:], " ")
		}
	}
	return line, ""
}

// set sets a field to a value of a line.
func set(f reflect.Value, value string) error {
	if strings.HasPrefix(value, `"`) || strings.HasPrefix(value, "`") {
		text, err := strconv.Unquote(value)
		if err != nil {
			return err
		}
		value = text
	}
	if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](f.Addr()); ok {
		return u.UnmarshalText([]byte(value))
	}
	if f.Type() == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(value)
		f.SetInt(int64(d))
		return err
	}
	if f.Kind() == reflect.String {
		f.SetString(value)
		return nil
	}
	return json.Unmarshal([]byte(value), f.Addr().Interface())
}
