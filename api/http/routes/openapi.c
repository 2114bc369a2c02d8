/* SPDX-License-Identifier: Apache-2.0 */
/* GET /openapi.json: the routes (api/http/server.c) and their fields (field_table.h) as an OpenAPI
 * 3.1 document. */
#include "api/http/routes/field_table.h"
#include "api/http/routes/routes.h"
#include "base/version.h"

static json_t *bound_json(const struct hzp_field *field, double bound)
{
    if (field->kind != HZP_FIELD_INT)
        return json_real(bound);
    return json_integer(bound >= 0x1p63    ? INT64_MAX
                        : bound <= -0x1p63 ? INT64_MIN
                                           : (json_int_t)bound);
}

/* A value of this field, without null. */
static json_t *value_schema(const struct hzp_field *field)
{
    static const char *const types[] = {[HZP_FIELD_BOOL] = "boolean",
                                        [HZP_FIELD_INT] = "integer",
                                        [HZP_FIELD_NUMBER] = "number",
                                        [HZP_FIELD_STRING] = "string",
                                        [HZP_FIELD_TEXT] = "string"};
    if (field->schema || field->kind == HZP_FIELD_JSON)
        return json_loads(field->schema ? field->schema : "{}", 0, NULL);
    json_t *json = json_pack("{s:s}", "type", types[field->kind]);
    if (field->kind == HZP_FIELD_INT || field->kind == HZP_FIELD_NUMBER) {
        json_object_set_new(json, "minimum", bound_json(field, field->low));
        json_object_set_new(json, "maximum", bound_json(field, field->high));
    }
    return json;
}

/* A field of a body may also be null, which means that it is absent. */
static json_t *field_schema(const struct hzp_field *field, bool nullable)
{
    json_t *json = value_schema(field), *preset;
    if (nullable && json_object_size(json))
        json = json_pack("{s:[o, {s:s}]}", "anyOf", json, "type", "null");
    json_object_set_new(json, "description", json_string(field->note));
    preset = field->preset ? json_loads(field->preset, JSON_DECODE_ANY, NULL) : NULL;
    if (preset)
        json_object_set_new(json, "default", preset);
    return json;
}

/* Adds a field; x-ignored, x-refused and x-members are ours, for docs/API.md. */
static void add_field(const struct hzp_field *field, bool exact, json_t *fields, json_t *needed,
                      json_t *refused)
{
    if (field->use == HZP_FIELD_REFUSED) {
        json_object_set_new(refused, field->name, json_string(field->note));
        return;
    }
    json_t *json = field_schema(field, field->use != HZP_FIELD_NEEDED && !exact);
    if (field->use == HZP_FIELD_IGNORED)
        json_object_set_new(json, "x-ignored", json_true());
    json_object_set_new(fields, field->name, json);
    if (field->use == HZP_FIELD_NEEDED)
        json_array_append_new(needed, json_string(field->name));
}

/* The members of objects within fields, by their path; "x-" as above. */
static json_t *members_json(const struct hzp_members *members)
{
    json_t *json = json_object();
    for (; members && members->path; members++)
        json_object_set_new(
            json, members->path,
            json_pack("{s:s, s:b}", "names", members->names, "open", (int)members->open));
    return json;
}

static json_t *set_schema(const struct hzp_field_set *set)
{
    json_auto_t *needed = json_array(), *refused = json_object();
    json_t *fields = json_object(), *json;
    for (int g = 0; g < HZP_FIELD_GROUPS_MAX && set->group[g]; g++)
        for (const struct hzp_field *field = set->group[g]; field->name; field++)
            add_field(field, set->exact, fields, needed, refused);
    json = json_pack("{s:s, s:o, s:b}", "type", "object", "properties", fields,
                     "additionalProperties", set->open);
    if (json_array_size(needed))
        json_object_set(json, "required", needed);
    if (json_object_size(refused))
        json_object_set(json, "x-refused", refused);
    if (set->members)
        json_object_set_new(json, "x-members", members_json(set->members));
    return json;
}

static json_t *reference(const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "#/components/schemas/%s", name);
    return json_pack("{s:s}", "$ref", path);
}

static json_t *body_json(const struct hzp_route *route)
{
    json_t *schema = reference(route->body->name);
    if (route->feed) /* a list, or lines, of such objects */
        schema = json_pack("{s:[o, {s:s, s:o}]}", "anyOf", schema, "type", "array", "items",
                           reference(route->body->name));
    return json_pack("{s:b, s:{s:{s:o}}}", "required", 1, "content", "application/json", "schema",
                     schema);
}

static json_t *parameters_json(const struct hzp_route *route, bool tail)
{
    json_t *list = json_array();
    if (tail)
        json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:{s:s}}", "name", "id", "in",
                                              "path", "required", 1, "schema", "type", "string"));
    for (const struct hzp_field *field = route->query; field && field->name; field++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o}", "name", field->name, "in",
                                              "query", "description", field->note, "schema",
                                              field_schema(field, false)));
    return list;
}

/* Answers: a good one, the errors, and for a route of bodies that is busy or slow 202. */
static json_t *answers_json(const struct hzp_route *route)
{
    const char *type = route->type ? route->type : "application/json";
    json_t *good = json_pack("{s:{}}", type);
    if (route->kind == HZP_ANSWER_STREAM)
        json_object_set_new(good, "text/event-stream", json_object());
    json_t *json = json_pack("{s:{s:s, s:O}, s:{s:s, s:{s:{s:o}}}}", "200", "description", "OK",
                             "content", good, "default", "description", "An error", "content",
                             "application/json", "schema", reference("Error"));
    if (route->feed)
        json_object_set_new(json, "202",
                            json_pack("{s:s, s:O}", "description", "Accepted", "content", good));
    json_decref(good);
    return json;
}

static json_t *route_json(const struct hzp_route *route)
{
    bool tail = route->path[1] && route->path[strlen(route->path) - 1] == '/';
    json_t *json =
        json_pack("{s:s, s:o}", "summary", route->summary, "responses", answers_json(route));
    json_t *parameters = parameters_json(route, tail);
    if (json_array_size(parameters))
        json_object_set(json, "parameters", parameters);
    json_decref(parameters);
    if (route->body)
        json_object_set_new(json, "requestBody", body_json(route));
    if (route->right != HZP_RIGHT_NONE)
        json_object_set_new(json, "security", json_pack("[{s:[]}, {}]", "key"));
    return json;
}

static void add_route(const struct hzp_route *route, json_t *paths, json_t *schemas)
{
    char path[128], method[16];
    size_t n = strlen(route->path);
    snprintf(path, sizeof(path), "%s%s", route->path,
             n > 1 && route->path[n - 1] == '/' ? "{id}" : "");
    size_t i = 0;
    for (; route->method[i] && i + 1 < sizeof(method); i++)
        method[i] = (char)(route->method[i] | 0x20);
    method[i] = 0;
    if (!json_object_get(paths, path))
        json_object_set_new(paths, path, json_object());
    json_object_set_new(json_object_get(paths, path), method, route_json(route));
    if (route->body && !json_object_get(schemas, route->body->name))
        json_object_set_new(schemas, route->body->name, set_schema(route->body));
}

enum MHD_Result hzp_route_openapi(struct hzp_exchange *x)
{
    json_t *paths = json_object(), *schemas = json_object();
    for (const struct hzp_route *route = x->server->routes; route->path; route++)
        add_route(route, paths, schemas);
    json_object_set_new(schemas, "Error",
                        json_pack("{s:s, s:[s], s:{s:{s:s, s:[s, s]}}}", "type", "object",
                                  "required", "error", "properties", "error", "type", "object",
                                  "required", "message", "type"));
    return hzp_reply_pack(x, "{s:s, s:{s:s, s:s}, s:o, s:{s:o, s:{s:{s:s, s:s}}}}", "openapi",
                          "3.1.0", "info", "title", "hzpserve", "version", HZP_VERSION_TEXT,
                          "paths", paths, "components", "schemas", schemas, "securitySchemes",
                          "key", "type", "http", "scheme", "bearer");
}
