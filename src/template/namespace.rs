//! `namespace()`: the only value that a template can change, and so the only one that could contain itself.
//!
//! Python's is opaque: it is compared by identity and has no items. Minijinja's own is a map, which everything that
//! walks values (`==`, `in`, keys, `~`) would follow around a cycle until the stack ends. Therefore this one.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use minijinja::value::{DynObject, Kwargs, Object, ObjectRepr, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

/// What `{% set ns.x = value %}` is rewritten to call.
pub const SET: &str = "__setattr__";

#[derive(Default)]
struct Namespace {
    attributes: Mutex<BTreeMap<String, Value>>,
}

impl Namespace {
    fn set(&self, name: String, value: Value) {
        // The old value is dropped after the lock is free: it may hold this very namespace.
        let _old = self.attributes.lock().unwrap_or_else(PoisonError::into_inner).insert(name, value);
    }
}

/// Not derived: that would follow the attributes.
impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("<Namespace>")
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).get(key.as_str()?).cloned()
    }

    fn call_method(self: &Arc<Self>, state: &mut State, method: &str, arguments: &[Value]) -> Result<Value, Error> {
        if method == SET {
            let (name, value) = from_args(arguments)?;
            self.set(name, value);
            return Ok(Value::UNDEFINED);
        }
        match self.get_value(&Value::from(method)) {
            Some(attribute) => attribute.call(state, arguments),
            None => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        Some(Arc::as_ptr(self).cmp(&Arc::as_ptr(&other.downcast::<Self>()?)))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// All namespaces of one rendering. Those that hold each other would never be freed; the end of the rendering empties them.
#[derive(Clone, Default)]
pub struct Namespaces(Arc<Mutex<Vec<Weak<Namespace>>>>);

impl Namespaces {
    pub fn add_to(&self, environment: &mut Environment<'static>) {
        let all = self.0.clone();
        environment.add_function("namespace", move |state: &State, defaults: Option<Value>, named: Kwargs| {
            let namespace = Namespace::default();
            if let Some(defaults) = defaults {
                if defaults.kind() != ValueKind::Map {
                    let what = format!("namespace takes a mapping, not {}", defaults.kind());
                    return Err(Error::new(ErrorKind::InvalidOperation, what));
                }
                for key in defaults.try_iter()? {
                    state.consume_fuel(1)?;
                    namespace.set(key.to_string(), defaults.get_item(&key)?);
                }
            }
            for name in named.args() {
                namespace.set(name.into(), named.peek(name)?);
            }
            let namespace = Arc::new(namespace);
            all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&namespace));
            Ok(Value::from_dyn_object(namespace))
        });
    }

    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for namespace in all.iter().filter_map(Weak::upgrade) {
            let _attributes = std::mem::take(&mut *namespace.attributes.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_frees_namespaces_that_hold_each_other() {
        let namespaces = Namespaces::default();
        let first = Arc::new(Namespace::default());
        first.set("itself".into(), Value::from_dyn_object(first.clone()));
        namespaces.0.lock().unwrap().push(Arc::downgrade(&first));
        let weak = Arc::downgrade(&first);
        drop(first);
        assert!(weak.upgrade().is_some());
        namespaces.clear();
        assert!(weak.upgrade().is_none());
    }
}
